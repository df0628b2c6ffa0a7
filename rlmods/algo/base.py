"""Online reinforcement learning: collect, filter, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from rlmods.algo import record
from rlmods.algo.experience import assemble
from rlmods.algo.learner import Batch, Learner
from rlmods.algo.pool import Pool
from rlmods.evaluation import correctness
from rlmods.protocols import KL, Advantage, Aggregation, Ratio, Sampling
from rlmods.reward.scores import as_scores
from rlmods.types import Experience, Prompt, Totals, UserError

__all__ = ["Batch", "Learner", "PolicyGradient"]


class PolicyGradient(Learner):
    """Prompts -> responses -> rewards -> advantages -> epochs x minibatches of optimizer steps, then a new policy version.

    Maximises `aggregate(ratio(log pi - log pi_old, A)) + entropy_coefficient * H - coefficient * KL`. Every part is given; a subclass
    is a paper's objective and the choice of parts that makes it.
    """

    groups: ClassVar[tuple[str, ...]] = (
        *Learner.groups, "sampling", "advantage", "kl", "ratio", "aggregation",
    )  # fmt: skip

    def __init__(
        self,
        *,
        sampling: Sampling,
        advantage: Advantage,
        kl: KL,
        ratio: Ratio,
        aggregation: Aggregation,
        entropy_coefficient: float = 0.0,
        overlong_filter: bool = False,
        max_draws: int = 10,
        fallback: Literal["train", "skip", "error"] = "train",
        surplus: Literal["keep", "drop"] = "keep",
        **shared: Any,
    ) -> None:
        """
        Args:
            entropy_coefficient: weight of the entropy bonus (nats per token, aggregated as the objective is).
            overlong_filter: truncated responses carry no loss and do not count in its denominators.
            max_draws: batches of prompts one iteration may draw until `sampling` has kept enough groups.
            fallback: what happens then: train on the groups there are, skip the iteration, or stop with an error.
            surplus: groups kept beyond what the iteration needs wait for the next one, or are dropped (and counted).
        """
        super().__init__(**shared)
        self.sampling, self.advantage, self.kl, self.ratio, self.aggregation = sampling, advantage, kl, ratio, aggregation
        self.entropy_coefficient, self.overlong_filter = entropy_coefficient, overlong_filter
        self.max_draws, self.fallback, self.surplus = max_draws, fallback, surplus
        # In a tuple, so that it is no submodule: frozen weights stay out of checkpoint and optimizer.
        self.frozen = (self.policy.frozen_copy(),) if kl.coefficient > 0 and getattr(kl, "needs_reference", True) else ()
        self.pool = Pool()
        self.draws = 0
        """Batches of prompts since the run began."""
        self.attempts = 0
        """Batches of prompts in this iteration."""
        self.sampled_tokens = 0
        """Response tokens in this iteration, over all ranks."""

    @property
    def temperature(self) -> float:
        return float(getattr(self.rollout, "temperature", 1.0))

    # The iteration

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.pool.to(self.device)
        for network in self.frozen:
            network.to(self.device)

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Draw a batch of prompts; once enough groups are kept, make the iteration's optimizer steps."""
        self.pool.add(*self.collect(prompts))
        self.attempts += 1
        wanted = self.batch.prompts // self.trainer.world_size
        have = int(self.across_ranks(torch.tensor(self.pool.num_groups), "min"))
        if have < wanted and self.attempts < self.max_draws:
            return
        if have < wanted and self.fallback == "error":
            raise UserError(
                f"iteration {self.iteration + 1}: after {self.attempts} draws only {have} of {wanted} groups are worth training on; "
                "try another data level, sampling=fixed, algo.max_draws=N or algo.fallback=train"
            )
        self.meter.mean("train/draws", self.attempts)
        self.meter.mean("train/short_of_groups", float(have < wanted))
        if have >= wanted or self.fallback == "train":
            self.improve(self.pool.take(wanted))
        self.attempts = 0
        self.pool.end_iteration()
        self.finish_iteration()

    @torch.no_grad()
    def collect(self, prompts: Sequence[Prompt]) -> tuple[Experience, Tensor]:
        """Experience of one batch of prompts with its credit, and which rows `sampling` keeps."""
        with self.timed("rollout"):
            responses = self.rollout.generate(prompts, samples=self.batch.samples, iteration=self.iteration)
        with self.timed("reward"):
            scores = as_scores(self.reward(responses), len(responses), "reward")
        group = torch.arange(len(prompts)).repeat_interleave(self.batch.samples) + self.draws * len(prompts)
        self.draws += 1
        experience = assemble(responses, scores, group, version=self.iteration, pad_id=self.policy.pad_id).to(self.device)
        with self.timed("score"):
            experience = self.credit(experience)
        judged = correctness(scores).to(self.device)
        if self.overlong_filter:
            complete = torch.tensor([r.finish == "stop" for r in responses], device=self.device)
            experience = replace(experience, mask=experience.mask & complete[:, None])
        keep = self.keep(judged, experience)
        if scores.correct is None and not keep.all() and self.draws == 1:
            rank_zero_warn("sampling drops groups by their total reward, as this reward does not say which answers are correct")
        record.sampled(self.meter, responses, scores, judged, experience.group, keep)
        self.samples += record.rows(responses, scores, experience, keep, self.iteration + 1)
        self.sampled_tokens += int(self.across_ranks(torch.tensor(sum(len(r.tokens) for r in responses))))
        return experience, keep

    def credit(self, experience: Experience) -> Experience:
        """Reference log-probabilities, KL in the reward, and advantages."""
        if self.frozen:
            reference = self.score(experience, self.frozen[0])
            experience = replace(experience, ref_logprobs=reference)
            if self.kl.where == "reward":
                old = self.score(experience, self.policy)
                distance = torch.where(experience.mask, self.kl(old, reference), 0.0)
                experience = replace(experience, old_logprobs=old, rewards=experience.rewards - self.kl.coefficient * distance)
                self.meter.mean("train/kl_ref", distance, experience.mask)
        credit = self.advantage(experience.rewards, experience.mask, experience.group, experience.values)
        return replace(experience, advantages=credit.advantages, returns=credit.returns)

    def keep(self, judged: Tensor, experience: Experience) -> Tensor:
        """Rows of the groups that `sampling` keeps: whole groups, decided by their scored rows, with at least one row that carries loss."""
        group, scored = experience.group, ~judged.isnan()
        kept = self.sampling(judged[scored].float(), group[scored])
        return torch.isin(group, group[scored][kept]) & torch.isin(group, group[experience.mask.any(1)])

    def improve(self, experience: Experience) -> None:
        """Epochs x minibatches of optimizer steps on the rows of one iteration."""
        plan = self.minibatches(len(experience))
        # The first minibatch meets the policy that sampled it: its old log-probs are the new ones, unless they are needed again.
        later = torch.ones(len(experience), dtype=torch.bool, device=self.device)
        later[plan[0]] = self.batch.epochs > 1
        waiting = self.wait()
        with self.timed("score"):
            rows = Experience.concat([experience, waiting])
            rows = self.scored(rows, torch.cat([later, torch.ones_like(waiting.group, dtype=torch.bool)]))
            experience, self.pool.kept = rows.select(torch.arange(len(later))), rows.select(torch.arange(len(later), len(rows)))
        self.meter.mean("train/stale_fraction", (experience.version < self.iteration).double())
        with self.timed("update"):
            self.policy.train(self.policy.gradient_checkpointing)
            for i, chosen in enumerate(plan):
                batch = experience.select(chosen)
                if i == 0:
                    fresh = batch.version == self.iteration
                    batch = replace(batch, old_logprobs=batch.old_logprobs.masked_fill(fresh[:, None], torch.nan))
                self.update(batch)
            self.policy.eval()

    def wait(self) -> Experience:
        """Surplus groups that stay for the next iteration; they need their old log-probs before the policy moves on."""
        assert self.pool.kept is not None
        self.meter.mean("train/surplus_groups", self.pool.num_groups)
        if self.surplus == "drop":
            self.pool.kept = self.pool.kept.select(torch.zeros(0, dtype=torch.long, device=self.device))
        return self.pool.kept

    def scored(self, experience: Experience, needed: Tensor) -> Experience:
        """The same rows with old log-probabilities in the rows `needed` [N] that have none yet (NaN)."""
        rows = (needed & experience.old_logprobs.isnan().any(1) & experience.mask.any(1)).nonzero().squeeze(1)
        old = experience.old_logprobs.clone()
        # Ranks may miss different numbers of rows: every one takes part in the forwards.
        if self.across_ranks(torch.tensor(len(rows))) > 0:
            part = experience.select(rows) if len(rows) else experience.select(torch.tensor([0], device=self.device)).silent()
            old[rows] = self.score(part, self.policy)[: len(rows)]
        return replace(experience, old_logprobs=old)

    @torch.no_grad()
    def score(self, experience: Experience, policy: Any) -> Tensor:
        """Teacher-forced log-probabilities [N, T] of the sampled tokens."""
        out = torch.zeros_like(experience.old_logprobs)
        for micro, rows in self.microbatches(experience):
            logprobs, _ = policy(micro.tokens, micro.mask, temperature=self.temperature)
            out[rows, : logprobs.shape[1]] = logprobs[: len(rows)]
        return out

    # The loss

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        logprobs, entropy = self.policy(micro.tokens, micro.mask, temperature=self.temperature, entropy=self.entropy_coefficient != 0)
        old = torch.where(micro.old_logprobs.isnan(), logprobs.detach(), micro.old_logprobs)
        log_ratio = torch.where(micro.mask, logprobs - old, 0.0)
        surrogate = self.ratio(log_ratio, micro.advantages, micro.mask)
        objective = surrogate.objective
        if self.entropy_coefficient:
            objective = objective + self.entropy_coefficient * entropy
        if micro.ref_logprobs is not None and self.kl.where == "loss":
            penalty = self.kl(logprobs, torch.where(micro.mask, micro.ref_logprobs, 0.0))
            objective = objective - self.kl.coefficient * penalty
            self.meter.mean("train/kl_ref", penalty, micro.mask)
        record.watch(self.meter, micro, log_ratio, old, entropy, surrogate.clipped)
        return -self.aggregation(objective, micro.mask, totals)

    def performance(self) -> dict[str, float]:
        tokens, self.sampled_tokens = self.sampled_tokens, 0
        self.response_tokens += tokens
        return super().performance() | {"perf/response_tokens_per_s": tokens / max(self.seconds["rollout"], 1e-9)}

    # The checkpoint

    def state(self) -> dict[str, Any]:
        return super().state() | {"draws": self.draws, "pool": self.pool.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.draws = state["draws"]
        self.pool.load_state(state["pool"])

