"""The reinforcement-learning loop: sample responses, grade them, estimate advantages, and make
optimizer steps on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.correction import NoCorrection
from rlmods.critic import NoCritic
from rlmods.critic.loss import clip_range, value_loss
from rlmods.errors import UserError, check_bounds
from rlmods.needs import KLNeeds, RatioNeeds, needs_of
from rlmods.protocols import KL, Advantage, Aggregation, Correction, Ratio, Sampling
from rlmods.reference import StartPolicy
from rlmods.reward.scores import as_scores
from rlmods.router import Routing
from rlmods.training.buffer import SampleBuffer
from rlmods.training.collate import collate, generate
from rlmods.training.credit import CreditAssignment
from rlmods.training.evaluation import with_settings
from rlmods.training.extensions import (
    PTX,
    EarlyStopping,
    EntropyControl,
    ExpertRouting,
    MovingReference,
    PromptRetirement,
    Replay,
    SampleAhead,
    UpdateKL,
)
from rlmods.training.metrics import (
    correctness,
    lacks_correctness,
    log_advantages,
    log_correction,
    log_critic,
    log_responses,
    log_update,
    sample_rows,
    values_and_mask,
)
from rlmods.training.preflight import synthetic_responses
from rlmods.training.reference import Reference
from rlmods.training.reward_scale import RewardScale
from rlmods.training.scorer import LogprobScorer
from rlmods.types import Experience, Prompt, Response, Scores, Totals, objective


@dataclass(frozen=True)
class PolicyGradientSettings:
    """Settings of the loop, `algo.*` in the configuration. With the defaults no extension is
    added."""

    entropy_coefficient: float = objective(0.0)
    """Weight of the entropy bonus (nats per token, aggregated like the objective)."""
    target_entropy: float | None = objective(None)
    """Target entropy, nats per token, to which the weight of the entropy bonus is adapted; null:
    the weight is fixed."""
    entropy_rate: float = 0.01
    """Change of the weight per iteration and nat of distance from `target_entropy`."""
    target_kl: float | None = objective(None)
    """Target KL from the old policy, nats per token. Above 1.5 times this, the iteration makes no
    further steps; null: no early stop."""
    overlong_filter: bool = objective(False)
    """Leave truncated responses out of the loss and of its denominators."""
    max_draws: int = 10
    """Batches of prompts that one iteration may sample until `sampling` has kept enough groups."""
    fallback: Literal["train", "skip", "error"] = "train"
    """Action if too few groups are kept after `max_draws` batches: train on them, skip the
    optimizer steps, or stop with an error."""
    surplus: Literal["keep", "drop"] = "keep"
    """Kept groups that an iteration does not need: keep them for the next one, or drop (and count)
    them."""
    retire_solved: int | None = objective(None)
    """Occurrences in a row with only correct responses after which later passes over the data leave
    a prompt out; null: never."""
    retire_unsolved: int | None = objective(None)
    """The same for only wrong responses."""
    bring_back: float = objective(0.1)
    """Fraction of the prompts left out that each pass brings back, rounded up."""
    normalize_reward: bool = objective(False)
    """Normalise rewards by their running mean and standard deviation."""
    clip_reward: float | None = objective(None)
    """Bound on the absolute reward, after normalisation; null: none."""
    replay_fraction: float = objective(0.0)
    """Number of replayed rows of earlier iterations relative to the number of fresh rows; 0: no
    replay."""
    replay_staleness: int = 4
    """Iterations for which a row can be replayed."""
    reference_every: int | None = objective(None)
    """Iterations after which the reference is set to the policy (iterative GRPO); null: never."""
    ptx_coefficient: float = objective(0.0)
    """Weight of the supervised loss on the rows of `data@ptx` (InstructGPT's gamma, token mean); 0:
    none."""
    ptx_rows: int = 32
    """Rows of the supervised loss in one optimizer step, at least one per rank."""

    def __post_init__(self) -> None:
        check_bounds(
            self, "algo", {name: (getattr(self, name) >= 0, "0 or more") for name in NON_NEGATIVE}
        )
        check_bounds(
            self,
            "algo",
            {name: ((x := getattr(self, name)) is None or x > 0, "above 0") for name in POSITIVE},
        )
        check_bounds(
            self,
            "algo",
            {name: ((x := getattr(self, name)) is None or x >= 1, "at least 1") for name in COUNTS},
        )
        check_bounds(self, "algo", {"bring_back": (0 <= self.bring_back <= 1, "from 0 to 1")})


NON_NEGATIVE = ("entropy_coefficient", "replay_fraction", "ptx_coefficient")
POSITIVE = ("target_entropy", "entropy_rate", "target_kl", "clip_reward")
COUNTS = (
    "max_draws",
    "replay_staleness",
    "reference_every",
    "ptx_rows",
    "retire_solved",
    "retire_unsolved",
)


class PolicyGradient(Learner):
    """Maximise `aggregate(w ratio(log pi - log pi_old, A) + c H - beta KL)`, and regress the critic
    on the returns if there is one.

    w are the weights of `correction`, if there is one. They apply to the objective of the ratio
    alone, as in the papers: entropy, KL in the loss and the value loss are not weighted.

    The parts are constructor arguments. A subclass documents the objective of a paper; its option
    in `conf/algo/` selects the parts."""

    groups: ClassVar[tuple[str, ...]] = (
        *Learner.groups,
        "reference",
        "router",
        "rollout",
        "environment",
        "branching",
        "reward",
        "sampling",
        "advantage",
        "critic",
        "kl",
        "ratio",
        "correction",
        "aggregation",
    )
    settings_type: ClassVar[type[Any]] = PolicyGradientSettings
    samples_responses: ClassVar[bool] = True
    samples_ahead: ClassVar[bool] = True
    trains_on_turns: ClassVar[bool] = True

    def __init__(
        self,
        *,
        sampling: Sampling,
        advantage: Advantage,
        kl: KL,
        ratio: Ratio,
        aggregation: Aggregation,
        critic: Any = None,
        reference: Any = None,
        router: Routing | None = None,
        correction: Correction | None = None,
        **learner: Any,
    ) -> None:
        """
        Args:
            critic: creates the value network from the policy; None: there is none.
            reference: loads the reference, given the policy; None: a frozen copy of it.
            router: treatment of the routers of a mixture of experts; None: they are trained like
            all else.
            correction: weights of samples of another distribution; None: no weights.
            learner: arguments of `Learner`.
        """
        super().__init__(**learner)
        self.sampling, self.advantage, self.kl, self.ratio, self.aggregation = (
            sampling,
            advantage,
            kl,
            ratio,
            aggregation,
        )
        self.correction = NoCorrection() if correction is None else correction
        self.credit = CreditAssignment(advantage)
        critic, reference, router = (
            critic or NoCritic(),
            reference or StartPolicy(),
            router or Routing(),
        )
        self.critic_config, self.critic = critic, critic(self.policy)
        kl_needs = needs_of(kl, KLNeeds)
        self.full_kl = kl_needs.distributions
        if kl_needs.reference:
            self.reference = Reference(reference(self.policy))
        temperature = needs_of(ratio, RatioNeeds).temperature
        self.scorer = LogprobScorer(
            self.policy, self.critic, self.rollout, self.microbatches, self.ranks, temperature
        )
        self.buffer = SampleBuffer(self.ranks)
        settings: PolicyGradientSettings = self.settings
        self.entropy_coefficient = settings.entropy_coefficient
        scales = settings.normalize_reward or settings.clip_reward is not None
        self.reward_scale = (
            RewardScale(settings.normalize_reward, settings.clip_reward) if scales else None
        )
        self.loss_outputs: dict[str, bool] = {}
        """Optional outputs of the policy's forward that the loss needs."""
        self.kl_stats = torch.zeros(2, dtype=torch.float64)
        """KL estimate of the latest optimizer step summed over the tokens of this rank, and the
        number of tokens."""
        self.value_clip: float | None = None
        """Bound on the change of the critic's values in this iteration; None: no bound."""
        self.total_batches = 0
        """Batches of prompts sampled since the run began."""
        self.sampled_tokens = 0
        """Response tokens sampled in this iteration on this rank."""
        self.filters_by_reward = False
        """True if `sampling` has dropped a group by its total reward, because the reward did not
        report correctness."""
        self.sampled_rows: dict[int, list[dict[str, Any]]] = {}
        """Rows of the sample log of this iteration on this rank, by group."""
        self.router = router
        router(self.policy)
        self._add_extensions()

    def _add_extensions(self) -> None:
        settings: PolicyGradientSettings = self.settings
        self.ahead = SampleAhead() if getattr(self.rollout, "ahead", 0) else None
        if self.ahead is not None:
            self.add_extension(self.ahead)
        if settings.replay_fraction:
            self.add_extension(Replay(settings.replay_fraction, settings.replay_staleness))
        if settings.retire_solved is not None or settings.retire_unsolved is not None:
            self.add_extension(
                PromptRetirement(
                    settings.retire_solved, settings.retire_unsolved, settings.bring_back
                )
            )
        if settings.ptx_coefficient:
            self.add_extension(
                PTX(
                    settings.ptx_coefficient,
                    self.splits.ptx,
                    settings.ptx_rows,
                    self.splits.ptx_weights,
                )
            )
        if self.policy.is_mixture:
            self.add_extension(ExpertRouting(self.router))
        if settings.target_entropy is not None:
            self.add_extension(EntropyControl(settings.target_entropy, settings.entropy_rate))
        if settings.target_kl is not None:
            self.add_extension(EarlyStopping(settings.target_kl))
        if hasattr(self.ratio, "on_iteration_end"):
            self.add_extension(UpdateKL())
        if settings.reference_every is not None:  # after Replay, whose rows it scores
            self.add_extension(MovingReference(settings.reference_every))

    @property
    def networks(self) -> dict[str, nn.Module]:
        return {"policy": self.policy} | ({} if self.critic is None else {"critic": self.critic})

    def optimizer_settings(self, network: str) -> dict[str, Any]:
        return (
            {"lr": self.critic_config.lr}
            if network == "critic" and self.critic_config.lr is not None
            else {}
        )

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.kl_stats = self.kl_stats.to(self.device)

    def rows_per_step(self) -> int:
        settings: PolicyGradientSettings = self.settings
        return round(super().rows_per_step() * (1 + settings.replay_fraction))

    def largest_rows(self) -> Iterator[Experience]:
        """Yield rows with old and reference log-probabilities and values. The rows of a group share
        the forward of their prompt, unless an optimizer step takes rows of groups at random."""
        whole_groups = self.batch.minibatches == 1 and not self.settings.replay_fraction
        group_size = self.batch.samples if whole_groups else 1
        for responses in synthetic_responses(self, self.rows_per_step(), 1, group_size):
            group = torch.arange(len(responses)) // group_size
            scores = Scores([1.0] * len(responses))
            batch = collate(
                responses, scores, group, policy_version=self.iteration, pad_id=self.policy.pad_id
            )
            if self.policy.is_mixture:
                batch = replace(
                    batch, routed_experts=self.policy.routers.unrecorded_experts(batch.tokens)
                )
            batch = self.scorer.add_values(batch.to(self.device))
            if self.reference is not None and not self.full_kl:
                batch = self.scorer.add_ref_logprobs(batch, self.reference.policy)
            yield replace(batch, advantages=batch.mask.float(), returns=batch.values)

    # The loop

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Sample one batch of prompts. Once enough groups are kept, make the optimizer steps of the
        iteration."""
        batch, keep = self.sample(prompts)
        self.buffer.push(batch, keep)
        num_groups, num_ready = (
            self.batch.prompts // self.ranks.world_size,
            self.buffer.min_groups(),
        )
        if num_ready < num_groups and self.buffer.num_pushed < self.settings.max_draws:
            return
        if num_ready < num_groups and self.settings.fallback == "error":
            raise UserError(
                f"iteration {self.iteration + 1}: after {self.buffer.num_pushed} draws only "
                f"{num_ready} of {num_groups} groups are "
                "kept; try another data level, sampling=fixed, algo.max_draws=N or "
                "algo.fallback=train"
            )
        self.meter.mean("train/draws", self.buffer.num_pushed)
        self.meter.mean("train/short_of_groups", float(num_ready < num_groups))
        if num_ready >= num_groups or self.settings.fallback == "train":
            self.update(self.buffer.pop(num_groups))
        self.buffer.end_iteration()
        self.end_iteration()
        self.sampled_tokens, self.sampled_rows = 0, {}

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt]) -> tuple[Experience, Tensor]:
        """Sample and grade responses to one batch of prompts, and estimate advantages.

        Returns the rows, and a mask [N] that is True on the rows of groups to keep."""
        responses = self.responses(prompts)
        for extension in self.extensions:
            extension.on_responses(responses)
        with self.timer("reward"):
            scores = as_scores(self.reward(responses), len(responses), "reward")
        for extension in self.extensions:
            extension.on_scores(responses, scores)
        batch = self.collate(prompts, responses, scores)
        if self.credit.needs_greedy:
            batch = self.add_greedy_baseline(batch, prompts)
        with self.timer("score"):
            batch = self.estimate_advantages(batch, scores)
        batch, keep, selected = self.filter(batch, responses, scores)
        log_responses(self.meter, responses, scores, batch.group, selected)
        self.samples += (
            rows := sample_rows(responses, scores, selected, self.iteration + 1, batch.group)
        )
        for group, row in zip(batch.group.tolist(), rows, strict=True):
            self.sampled_rows.setdefault(group, []).append(row)
        if not self.normalizes_advantages:
            log_advantages(self.sampled_rows, batch.select(keep))
        self.response_tokens += int(
            self.ranks.reduce(torch.tensor(sum(r.num_new for r in responses)))
        )
        return batch, keep

    def responses(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return responses to these prompts, sampled now or, with `rollout.ahead`, during the batch
        before."""
        if self.ahead is not None:
            return self.ahead(prompts)
        with self.timer("rollout"):
            return self.sample_responses(self.rollout, prompts)

    def sample_responses(self, rollout: Any, prompts: Sequence[Prompt]) -> list[Response]:
        """Sample responses to these prompts with the current weights of the rollout, and count
        their tokens."""
        responses = generate(rollout, prompts, samples=self.batch.samples, iteration=self.iteration)
        self.sampled_tokens += sum(r.num_new for r in responses)
        return responses

    def collate(
        self, prompts: Sequence[Prompt], responses: Sequence[Response], scores: Scores
    ) -> Experience:
        """Collate responses with the rewards that the advantage estimator reads."""
        group = torch.arange(len(prompts)).repeat_interleave(
            self.batch.samples
        ) + self.total_batches * len(prompts)
        self.total_batches += 1
        if self.reward_scale is not None:
            self.reward_scale.update(scores.values, self.ranks)
        rewards = self.credit.rewards(scores, self.scale(scores.values))
        batch = collate(
            responses, rewards, group, policy_version=self.iteration, pad_id=self.policy.pad_id
        )
        if self.policy.is_mixture:
            batch = replace(
                batch, routed_experts=self.policy.routers.unrecorded_experts(batch.tokens)
            )
        return batch.to(self.device)

    def scale(self, values: Sequence[float | None]) -> list[float | None]:
        """Normalise and clip rewards, if the settings say so."""
        return (
            list(values)
            if self.reward_scale is None
            else [self.reward_scale(value) for value in values]
        )

    def add_greedy_baseline(self, batch: Experience, prompts: Sequence[Prompt]) -> Experience:
        """Set `values` to the reward of the greedy response to each prompt, on every token of the
        responses to it.

        Responses to a prompt whose greedy response is unscored have no baseline, and no loss."""
        greedy = with_settings(self.rollout, temperature=0.0)
        with self.timer("rollout"):
            with self.timer.within("sync"):
                greedy.sync(self.policy, iteration=self.iteration)
            responses = generate(greedy, prompts, samples=1, iteration=self.iteration)
        with self.timer("reward"):
            scores = as_scores(self.reward(responses), len(responses), "reward")
        values, scored = values_and_mask(self.scale(scores.values))
        self.meter.mean("train/greedy_reward", values, scored)
        self.meter.mean("train/greedy_unscored_fraction", (~scored).double())
        for name, count in scores.counts.items():
            self.meter.sum(f"reward/{name}", count)
        baseline, usable = (
            x.to(self.device).repeat_interleave(self.batch.samples)[:, None]
            for x in (values.float(), scored)
        )
        mask = batch.mask & usable
        return replace(batch, mask=mask, values=torch.where(mask, baseline, 0.0))

    def estimate_advantages(self, batch: Experience, scores: Scores) -> Experience:
        """Add values, reference log-probabilities and advantages, which `normalize_advantages`
        completes for the rows trained on."""
        kl_in_reward = self.reference is not None and self.kl.where == "reward"
        if self.critic is not None or kl_in_reward:
            batch = self.scorer.add_values(batch)
        if self.reference is not None:
            if not self.full_kl:
                batch = self.scorer.add_ref_logprobs(batch, self.reference.policy)
            self.meter.mean("train/kl_coefficient", self.kl.coefficient)
        penalty = self.kl_penalty(batch) if kl_in_reward else torch.zeros_like(batch.rewards)
        batch = self.credit.estimate(batch, scores, penalty)
        if batch.returns is not None and batch.values is not None:
            log_critic(self.meter, batch.returns, batch.values, batch.mask, self.ranks)
        return batch

    def kl_penalty(self, batch: Experience) -> Tensor:
        """Return beta * KL from the reference per token, 0 in masked slots."""
        assert batch.ref_logprobs is not None
        kl = torch.where(batch.mask, self.kl(batch.old_logprobs, batch.ref_logprobs), 0.0)
        self.meter.mean("train/kl_ref", kl, batch.mask)
        return self.kl.coefficient * kl

    @property
    def normalizes_advantages(self) -> bool:
        """True if the final advantages of a row depend on the rows that it is trained with."""
        return self.credit.normalizes_batch

    def normalize_advantages(self, batch: Experience) -> Experience:
        """Normalise the advantages over the rows of an iteration, on all ranks, if the estimator
        does so."""
        return self.credit.normalize(batch)

    def filter(
        self, batch: Experience, responses: Sequence[Response], scores: Scores
    ) -> tuple[Experience, Tensor, Tensor]:
        """Apply the overlong filter and `sampling`.

        Returns the rows and two masks [N]: the rows of groups to keep, and the rows that `sampling`
        selected. A row of a kept group that is not selected counts in the baseline but not in the
        loss: its mask becomes empty. The buffer empties the masks of rejected groups."""
        if self.settings.overlong_filter:
            complete = torch.tensor([r.finish == "stop" for r in responses], device=self.device)
            batch = replace(batch, mask=batch.mask & complete[:, None])
        selected = self.select(correctness(scores).to(self.device), batch)
        keep = torch.isin(batch.group, batch.group[selected & batch.mask.any(1)])
        if not self.filters_by_reward and self.ranks.reduce(
            torch.tensor(float(lacks_correctness(scores) and not keep.all())), "max"
        ):
            self.filters_by_reward = True
            rank_zero_warn(
                "sampling drops groups by their total reward, because the reward does not "
                "report correctness for all responses"
            )
        return replace(batch, mask=batch.mask & (selected | ~keep)[:, None]), keep, selected

    def select(self, scores: Tensor, batch: Experience) -> Tensor:
        """Return a mask of the rows that `sampling` selects by `scores` [N] (NaN: unscored)."""
        scored = ~scores.isnan()
        selected = torch.zeros_like(scored)
        selected[scored] = self.sampling(scores[scored].float(), batch.group[scored])
        return selected

    def update(self, fresh: Experience) -> None:
        """Make epochs x minibatches optimizer steps on the rows of one iteration."""
        batch = fresh = self.normalize_advantages(fresh)
        self.credit.check(fresh, self.ratio, self.ranks)
        log_advantages(self.sampled_rows, fresh)
        self.meter.mean(
            "train/zero_advantage_fraction",
            torch.where(fresh.mask, fresh.advantages, 0.0).eq(0).all(1),
            fresh.mask.any(1),
        )
        for extension in self.extensions:
            batch = extension.before_update(batch)
        if self.critic is not None and batch.returns is not None:
            self.value_clip = clip_range(batch.returns, batch.mask, self.critic_config.clip)
        self.meter.mean("train/replayed_fraction", (len(batch) - len(fresh)) / len(batch))
        plan = self.minibatches(len(batch))
        batch = self.add_old_logprobs(batch, plan[0])
        self.meter.mean("train/stale_fraction", (batch.sampler_version < self.iteration).double())
        self.meter.maximum(
            "train/staleness_max",
            (self.iteration - batch.sampler_version).double(),
            batch.mask.any(1),
        )
        with self.timer("update"), self.update_mode():
            num_steps, stopped = self.optimize(batch, plan)
        self.meter.mean("train/early_stop", float(stopped))
        self.meter.mean("train/steps_done", num_steps / len(plan))
        for extension in self.extensions:
            extension.after_update(batch, len(fresh))

    def add_old_logprobs(self, batch: Experience, first: Tensor) -> Experience:
        """Compute the log-probabilities of the current policy for all rows that an optimizer step
        compares with it.

        On-policy rows of the first minibatch, by index `first`, need none: their old
        log-probabilities equal the new ones of that step. Groups that stay in the buffer need
        theirs before the policy changes."""
        waiting = self.carry_over()
        needed = torch.ones(len(batch), dtype=torch.bool, device=self.device)
        needed[first] = self.batch.epochs > 1 or any(
            extension.needs_old_logprobs for extension in self.extensions
        )
        with self.timer("score"):
            rows = Experience.concat([batch, waiting])
            rows = self.scorer.add_old_logprobs(
                rows, torch.cat([needed, torch.ones_like(waiting.group, dtype=torch.bool)])
            )
        self.buffer.kept = rows.select(torch.arange(len(batch), len(rows)))
        return rows.select(torch.arange(len(batch)))

    def carry_over(self) -> Experience:
        """Return the surplus groups that stay for the next iteration: the newest, at most as many
        as an iteration trains on. More would only become stale, on ranks that have them while
        another has too few."""
        num_groups = (
            0 if self.settings.surplus == "drop" else self.batch.prompts // self.ranks.world_size
        )
        self.meter.mean("train/surplus_groups", self.buffer.num_groups)
        self.meter.sum("train/dropped_groups", max(0, self.buffer.num_groups - num_groups))
        return self.buffer.keep_newest(num_groups)

    def optimize(self, batch: Experience, plan: Sequence[Tensor]) -> tuple[int, bool]:
        """Make the optimizer steps of `plan`. Returns their number, and True if an extension ended
        them early."""
        for i, rows in enumerate(plan):
            minibatch = batch.select(rows)
            # on-policy rows: the loss takes the new log-probabilities as the old ones, so that the
            # ratio is exactly 1
            if i == 0:
                on_policy = minibatch.policy_version == self.iteration
                minibatch = replace(
                    minibatch,
                    old_logprobs=minibatch.old_logprobs.masked_fill(on_policy[:, None], torch.nan),
                )
            more = [
                rows for extension in self.extensions for rows in extension.before_step(minibatch)
            ]
            self.kl_stats.zero_()
            self.train_step(minibatch, *more)
            if any(extension.should_stop() for extension in self.extensions):
                return i + 1, True
        return len(plan), False

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        """Return `-aggregate(w objective + c H - beta KL)` of a microbatch, plus the value loss and
        the terms of extensions."""
        c = self.entropy_coefficient
        other = (
            self.scorer.other(micro, self.reference.policy, self.kl)
            if self.reference is not None and self.full_kl
            else None
        )
        output = self.scorer.forward(
            micro, self.policy, entropy=c != 0, other=other, **self.loss_outputs
        )
        logprobs, entropy, values = output.logprobs, output.entropy, output.values
        old_logprobs = torch.where(
            micro.old_logprobs.isnan(), logprobs.detach(), micro.old_logprobs
        )
        log_ratio = torch.where(micro.mask, logprobs - old_logprobs, 0.0)
        needs_old = needs_of(self.ratio, RatioNeeds).old_logprobs
        options = {"old_logprobs": old_logprobs} if needs_old else {}
        surrogate = self.ratio(log_ratio, micro.advantages, micro.mask, **options)
        objective = surrogate.objective
        if (
            correction := self.correction(old_logprobs, micro.behavior_logprobs, micro.mask)
        ) is not None:
            objective = correction.weights * objective
            log_correction(self.meter, correction, micro.mask)
        if c:
            objective = objective + c * entropy
        kl = output.divergence
        if micro.ref_logprobs is not None and self.kl.where == "loss":
            kl = self.kl(logprobs, torch.where(micro.mask, micro.ref_logprobs, 0.0))
        if kl is not None:
            objective = objective - self.kl.coefficient * kl
            self.meter.mean("train/kl_ref", kl, micro.mask)
        updates = (log_ratio, old_logprobs, entropy, surrogate.clipped)
        self.kl_stats += log_update(
            self.meter,
            micro,
            *updates,
            self.iteration,
            compare_sampler=self.scorer.is_at_sampling_temperature,
        )
        loss = -self.aggregation(objective, micro.mask, totals)
        for extension in self.extensions:
            if (term := extension.loss_term(micro, output, totals)) is not None:
                loss = loss + term
        if values is not None and micro.returns is not None and micro.values is not None:
            regression, clipped = value_loss(
                values, micro.values, micro.returns, micro.mask, self.value_clip
            )
            self.meter.mean("train/value_loss", regression, micro.mask)
            self.meter.mean("train/value_clip_fraction", clipped.double(), micro.mask)
            loss = loss + self.critic_config.coefficient * TokenMean()(
                regression, micro.mask, totals
            )
        return loss

    def performance(self) -> dict[str, float]:
        num_tokens, seconds = (
            int(self.ranks.reduce(torch.tensor(self.sampled_tokens))),
            self.timer.seconds,
        )
        rate = num_tokens / max(seconds["rollout"] + seconds["rollout_ahead"], 1e-9)
        # The responses of the last iteration may all have been sampled ahead, in the one before.
        return super().performance() | ({"perf/response_tokens_per_s": rate} if num_tokens else {})

    # Checkpoint

    @property
    def stateful(self) -> dict[str, Any]:
        parts = {"buffer": self.buffer} | (
            {} if self.reward_scale is None else {"reward_scale": self.reward_scale}
        )
        return super().stateful | parts

    def state(self) -> dict[str, Any]:
        return super().state() | {"total_batches": self.total_batches}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.total_batches = state["total_batches"]
