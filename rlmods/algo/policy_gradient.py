"""Online reinforcement learning: collect, filter, improve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from rlmods.algo.improvement import Improvement
from rlmods.algo.learner import Learner
from rlmods.protocols import Advantage, Sampling
from rlmods.reward.scores import as_scores
from rlmods.training import logging as record
from rlmods.training.batch import Batch
from rlmods.training.buffer import Pool
from rlmods.training.collate import collate
from rlmods.training.controllers import RewardScale
from rlmods.training.evaluation import correctness, known, with_settings
from rlmods.types import Experience, Prompt, Response, UserError

__all__ = ["Batch", "Learner", "PolicyGradient"]


class PolicyGradient(Improvement):
    """Prompts -> responses -> rewards -> advantages -> epochs x minibatches of optimizer steps, then a new policy version.

    Every part is given; a subclass is a paper's objective and the choice of parts that makes it.
    """

    groups: ClassVar[tuple[str, ...]] = (*Improvement.groups, "sampling", "advantage")

    def __init__(
        self,
        *,
        sampling: Sampling,
        advantage: Advantage,
        overlong_filter: bool = False,
        max_draws: int = 10,
        fallback: Literal["train", "skip", "error"] = "train",
        surplus: Literal["keep", "drop"] = "keep",
        normalize_reward: bool = False,
        clip_reward: float | None = None,
        **shared: Any,
    ) -> None:
        """
        Args:
            overlong_filter: truncated responses carry no loss and do not count in its denominators.
            max_draws: batches of prompts one iteration may draw until `sampling` has kept enough groups.
            fallback: what happens then: train on the groups there are, skip the iteration, or stop with an error.
            surplus: groups kept beyond what the iteration needs wait for the next one, or are dropped (and counted).
            normalize_reward: rewards by running mean and standard deviation.
            clip_reward: bound on the absolute reward, after normalisation.
        """
        super().__init__(**shared)
        self.sampling, self.advantage = sampling, advantage
        self.overlong_filter, self.max_draws, self.fallback, self.surplus = overlong_filter, max_draws, fallback, surplus
        self.reward_scale = RewardScale(normalize_reward, clip_reward)
        self.pool = Pool()
        self.draws = 0
        """Batches of prompts since the run began."""
        self.attempts = 0
        """Batches of prompts in this iteration."""
        self.sampled_tokens = 0
        """Response tokens in this iteration, over all ranks."""

    @property
    def controllers(self) -> dict[str, Any]:
        return super().controllers | {"reward_scale": self.reward_scale}

    # The iteration

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.pool.to(self.device)

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
            self.pool.kept = self.improve(self.pool.take(wanted), self.wait())
        self.attempts = 0
        self.pool.end_iteration()
        self.finish_iteration()

    @torch.no_grad()
    def collect(self, prompts: Sequence[Prompt]) -> tuple[Experience, Tensor]:
        """Experience of one batch of prompts with its credit, and the rows of groups that stay."""
        with self.timed("rollout"):
            responses = self.rollout.generate(prompts, samples=self.batch.samples, iteration=self.iteration)
        self.observe(responses)
        with self.timed("reward"):
            scores = as_scores(self.reward(responses), len(responses), "reward")
        group = torch.arange(len(prompts)).repeat_interleave(self.batch.samples) + self.draws * len(prompts)
        self.draws += 1
        self.reward_scale.observe(scores.values, self.across_ranks)
        trained_on = replace(scores, values=[self.reward_scale.scaled(value) for value in scores.values])
        experience = collate(responses, trained_on, group, version=self.iteration, pad_id=self.policy.pad_id)
        experience = replace(experience, routes=self.policy.routers.blank(experience.tokens)).to(self.device)
        if getattr(self.advantage, "needs_greedy", False):
            experience = self.with_greedy_baseline(prompts, experience)
        with self.timed("score"):
            experience = self.credit(experience)
        judged = correctness(scores).to(self.device)
        if self.overlong_filter:
            complete = torch.tensor([r.finish == "stop" for r in responses], device=self.device)
            experience = replace(experience, mask=experience.mask & complete[:, None])
        chosen = self.keep(judged, experience)
        keep = torch.isin(experience.group, experience.group[chosen & experience.mask.any(1)])
        if (scores.correct is None or scores.monitored) and not keep.all() and self.draws == 1:
            rank_zero_warn("sampling drops groups by their total reward, as this reward does not say which answers are correct")
        # A scored row that is not chosen, in a group that stays, had its part in the baseline and carries no loss.
        experience = replace(experience, mask=experience.mask & (chosen | ~keep)[:, None])
        record.sampled(self.meter, responses, scores, judged, experience.group, chosen)
        self.samples += record.rows(responses, scores, experience, chosen, self.iteration + 1)
        self.sampled_tokens += int(self.across_ranks(torch.tensor(sum(len(r.tokens) for r in responses))))
        return experience, keep

    def observe(self, responses: Sequence[Response]) -> None:
        """All that was sampled, prompt-major."""

    def with_greedy_baseline(self, prompts: Sequence[Prompt], experience: Experience) -> Experience:
        """The reward of a greedy answer to each prompt as `values`, on every token of the responses to it.

        Responses to a prompt whose greedy answer is unscored have no baseline, and carry no loss."""
        greedy = with_settings(self.rollout, temperature=0.0)
        with self.timed("rollout"):
            greedy.sync(self.policy, iteration=self.iteration)
            answers: list[Response] = greedy.generate(prompts, samples=1, iteration=self.iteration)
        with self.timed("reward"):
            scores = as_scores(self.reward(answers), len(answers), "reward")
        values, scored = known([self.reward_scale.scaled(value) for value in scores.values])
        self.meter.mean("train/greedy_reward", values, scored)
        self.meter.mean("train/greedy_unscored_fraction", (~scored).double())
        for name, count in scores.counts.items():
            self.meter.total(f"reward/{name}", count)
        rows, usable = (x.to(self.device).repeat_interleave(self.batch.samples)[:, None] for x in (values.float(), scored))
        mask = experience.mask & usable
        return replace(experience, mask=mask, values=torch.where(mask, rows, 0.0))

    def credit(self, experience: Experience) -> Experience:
        """Values, reference log-probabilities, KL in the reward, and advantages."""
        in_reward = bool(self.reference) and self.kl.where == "reward"
        if self.critic is not None or in_reward:
            own = self.score(experience, self.policy, critic=True)
            values = experience.values if self.critic is None else own.values
            experience = replace(experience, old_logprobs=own.logprobs, values=values, routes=own.routes)
        if self.reference:
            experience = self.referenced(experience)
            if in_reward:
                assert experience.ref_logprobs is not None
                distance = torch.where(experience.mask, self.kl(experience.old_logprobs, experience.ref_logprobs), 0.0)
                experience = replace(experience, rewards=experience.rewards - self.kl.coefficient * distance)
                self.meter.mean("train/kl_ref", distance, experience.mask)
            self.meter.mean("train/kl_coefficient", self.kl.coefficient)
        given = (experience.rewards, experience.mask, experience.group, experience.values)
        if getattr(self.advantage, "needs_steps", False):
            if experience.steps is None:
                raise UserError("this advantage needs a reward for each step, and there is one for each response: type reward=process")
            credit = self.advantage(*given, steps=experience.steps)  # type: ignore[call-arg]
        else:
            credit = self.advantage(*given)
        if credit.returns is not None and experience.values is not None:
            record.critic(self.meter, credit.returns, experience.values, experience.mask, self.across_ranks)
        return replace(experience, advantages=credit.advantages, returns=credit.returns)

    def keep(self, judged: Tensor, experience: Experience) -> Tensor:
        """Rows that `sampling` chooses, by their unshaped correctness `judged` [N] (NaN: unscored)."""
        group, scored = experience.group, ~judged.isnan()
        chosen = torch.zeros_like(scored)
        chosen[scored] = self.sampling(judged[scored].float(), group[scored])
        return chosen

    def with_replay(self, fresh: Experience) -> Experience:
        experience = super().with_replay(fresh)
        old = experience.version < self.iteration
        if self.reference.moves and self.across_ranks(old.sum()) > 0:  # they met an earlier one
            with self.timed("score"):
                experience = self.referenced(experience)
        return experience

    def wait(self) -> Experience:
        """Surplus groups that stay for the next iteration: the newest, at most as many as that trains on. More would only age, on ranks
        that have them while another has too few. They need their old log-probs before the policy moves on."""
        most = 0 if self.surplus == "drop" else self.batch.prompts // self.trainer.world_size
        self.meter.mean("train/surplus_groups", self.pool.num_groups)
        self.meter.total("train/dropped_groups", max(0, self.pool.num_groups - most))
        return self.pool.newest(most)

    def performance(self) -> dict[str, float]:
        tokens, self.sampled_tokens = self.sampled_tokens, 0
        self.response_tokens += tokens
        return super().performance() | {"perf/response_tokens_per_s": tokens / max(self.seconds["rollout"], 1e-9)}

    # The checkpoint

    @property
    def shares(self) -> dict[str, Any]:
        return super().shares | {"pool": self.pool}

    def state(self) -> dict[str, Any]:
        return super().state() | {"draws": self.draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.draws = state["draws"]
