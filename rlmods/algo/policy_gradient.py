"""The reinforcement-learning loop: sample responses, grade them, estimate advantages, and make
optimizer steps on them.

    training_step(prompts):
        batch, keep = sample(prompts)       # responses, grade, build_batch, estimate_advantages,
                                            # mark_kept
        buffer.push(batch, keep)
        if too few groups and draws left: return    # the iteration continues with the next prompts
        if still too few: `algo.fallback`
        update(buffer.pop(num_groups)):
            normalize_advantages, minibatches, add_old_logprobs
            for minibatch in plan: train_step   # microbatches of `loss`, backward, clip, step
        end_iteration()                     # weights to the rollout, metrics, validation
    on_train_batch_end()                    # controllers, extensions, schedule, checkpoint
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlmods import protocols
from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.correction import NoCorrection
from rlmods.critic import NoCritic
from rlmods.critic.loss import clip_range, value_loss
from rlmods.errors import UserError
from rlmods.needs import KLNeeds, RatioNeeds, needs_of
from rlmods.policy.base import Policy, PolicyOutput
from rlmods.protocols import (
    KL,
    Advantage,
    Aggregation,
    Controller,
    Correction,
    Ratio,
    Rollout,
    Sampling,
    Tokens,
)
from rlmods.reference import StartPolicy
from rlmods.reward.scores import grade
from rlmods.rollout.order import generate_in_order
from rlmods.rollout.turns import num_added_tokens
from rlmods.router import Routing
from rlmods.tokens import AllTokens
from rlmods.training.adaptive import EntropyBonus, RewardScale
from rlmods.training.buffer import SampleBuffer
from rlmods.training.collate import collate
from rlmods.training.credit import CreditAssignment, teacher_log_ratio
from rlmods.training.extensions import SampleAhead, create_extensions
from rlmods.training.frozen import FrozenPolicy, Teacher
from rlmods.training.metrics import (
    correctness_or_reward,
    lacks_correctness,
    log_correction,
    log_critic,
    log_responses,
    log_teacher,
    log_update,
)
from rlmods.training.parts import TokenSelection, check_gradient, check_returned, field_of
from rlmods.training.scorer import LogprobScorer
from rlmods.training.settings import PolicyGradientSettings
from rlmods.training.train_step import Loss
from rlmods.training.turns import turn_columns
from rlmods.types import Experience, Prompt, Response, Scores, Totals


class PolicyGradient(Learner):
    """Maximise `aggregate(w m f(log pi - log pi_old, A) + c H - beta KL)`, and regress the
    critic on the returns if there is one. f is the part `ratio`; the KL term is there if the KL has
    `where=loss`.

    w are the weights of `correction`, and m is 1 on the tokens that `tokens` selects, else 0. Both
    apply to the objective of the ratio alone, as in the papers; the denominator of `aggregate`
    counts all tokens. A subclass documents the objective of a paper; its option in `conf/algo/`
    selects the parts."""

    config_groups = (
        *Learner.config_groups,
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
        "tokens",
        "aggregation",
    )
    settings_type = PolicyGradientSettings
    samples_responses = True
    settings: PolicyGradientSettings

    def __init__(
        self,
        *,
        sampling: Sampling,
        advantage: Advantage,
        kl: KL,
        ratio: Ratio,
        aggregation: Aggregation,
        critic: Any = None,
        reference: Callable[[Policy], Policy] | None = None,
        teacher: protocols.Teacher | None = None,
        router: Routing | None = None,
        correction: Correction | None = None,
        tokens: Tokens | None = None,
        **learner: Any,
    ) -> None:
        """
        Args:
            critic: creates the value network from the policy; None: there is none.
            reference: loads the reference, given the policy; None: a frozen copy of it.
            teacher: loads the teacher, given the policy, if `advantage` reads it.
            learner: arguments of `Learner`.
        """
        super().__init__(**learner)
        self.sampling = sampling
        self.advantage = advantage
        self.kl = kl
        self.set_ratio(ratio)
        self.correction = correction or NoCorrection()
        self.tokens = TokenSelection(tokens or AllTokens())
        self.aggregation = aggregation
        self.credit = CreditAssignment(advantage)
        self._add_critic(critic or NoCritic())
        self.full_kl = needs_of(kl, KLNeeds).distributions
        if needs_of(kl, KLNeeds).reference:
            self.reference = FrozenPolicy((reference or StartPolicy())(self.policy))
        self.teacher = None if teacher is None else Teacher(teacher, self.policy)
        self.router = router or Routing()
        self.router(self.policy)
        settings = self.settings
        self.scorer = self._make_scorer()
        self.buffer = SampleBuffer(self.ranks)
        self.entropy_bonus = EntropyBonus(
            settings.entropy_coefficient, settings.target_entropy, settings.entropy_rate
        )
        self.reward_scale: RewardScale | None = None
        if settings.normalize_reward or settings.clip_reward is not None:
            self.reward_scale = RewardScale(settings.normalize_reward, settings.clip_reward)
        self.kl_stats = torch.zeros(2, dtype=torch.float64)
        """KL(pi_old || pi) of the latest optimizer step, summed over the tokens of this rank that
        were graded in this iteration, and their number."""
        self.value_clip: float | None = None
        """Bound on the change of the critic's values in this iteration; None: no bound."""
        self.total_batches = 0
        """Batches of prompts sampled since the run began."""
        self.sampled_tokens = 0
        """Response tokens sampled in this iteration on this rank."""
        for extension in create_extensions(self, settings):
            self.add_extension(extension)

    def _make_scorer(self) -> LogprobScorer:
        return LogprobScorer(
            self.policy,
            self.critic,
            self.rollout,
            self.microbatches,
            self.ranks,
            self.ratio_needs.temperature,
            replay_experts=self.policy.is_mixture and self.router.replay,
        )

    def _add_critic(self, config: Any) -> None:
        self.critic_config = config
        self.critic: nn.Module | None = config(self.policy)
        if self.critic is not None:
            self.networks["critic"] = self.critic
            if config.lr is not None:
                self.optimizer_settings["critic"] = {"lr": config.lr}
        # in the first iterations, only the critic is trained
        self.schedule_starts["policy"] = config.pretraining

    @property
    def ahead(self) -> SampleAhead | None:
        """Sampler of the next batch of prompts, with `rollout.ahead`."""
        found = [x for x in self.extensions if isinstance(x, SampleAhead)]
        return found[0] if found else None

    def set_ratio(self, ratio: Ratio) -> None:
        """Set the ratio and what it declares."""
        self.ratio = ratio
        self.ratio_needs = needs_of(ratio, RatioNeeds)

    @property
    def frozen(self) -> dict[str, FrozenPolicy]:
        of_teacher = {} if self.teacher is None else self.teacher.frozen
        return super().frozen | of_teacher

    # The first iterations, in which only the critic is trained

    @property
    def pretrains_critic(self) -> bool:
        """True in the iterations of `critic.pretraining`."""
        return bool(self.iteration < self.critic_config.pretraining)

    def on_after_backward(self) -> None:
        super().on_after_backward()
        if self.pretrains_critic:
            # the optimizer then skips the policy and its moments
            for parameter in self.policy.parameters():
                parameter.grad = None

    def adapt(self, metrics: Mapping[str, float]) -> None:
        # the metrics are of an iteration that has ended
        if self.iteration > self.critic_config.pretraining:
            super().adapt(metrics)

    # The loop

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Sample one batch of prompts. With enough groups kept, make the optimizer steps of the
        iteration; after `algo.max_draws` batches, do what `algo.fallback` says."""
        batch, keep = self.sample(prompts)
        self.buffer.push(batch, keep)
        num_groups = self.batch.prompts // self.ranks.world_size
        is_short = self.buffer.min_groups() < num_groups
        if is_short and self.buffer.num_draws < self.settings.max_draws:
            return  # the iteration continues with the next batch of prompts
        if is_short and self.settings.fallback == "error":
            raise UserError(
                f"iteration {self.iteration + 1}: after {self.buffer.num_draws} draws a rank "
                f"has kept only {self.buffer.min_groups()} of its {num_groups} groups; try other "
                "data, sampling=fixed, algo.max_draws=N or algo.fallback=train"
            )
        self.meter.mean("train/draws", self.buffer.num_draws)
        self.meter.mean("train/short_of_groups", float(is_short))
        if not is_short or self.settings.fallback == "train":
            self.update(self.buffer.pop(num_groups))
        else:
            self.drop_older_groups(num_groups)
        self.buffer.end_iteration()
        self.end_iteration()
        self.sampled_tokens = 0

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt]) -> tuple[Experience, Tensor]:
        """Sample and grade responses to one batch of prompts, and estimate advantages.

        Returns the rows, and a mask [N] that is True on the rows of groups to keep."""
        responses = self.responses(prompts)
        scores = self.grade(responses)
        for extension in self.extensions:
            extension.on_responses(responses, scores)
        batch = self.build_batch(prompts, responses, scores)
        for extension in self.extensions:
            batch = extension.before_advantages(batch, prompts)
        with self.timer("score"):
            batch = self.estimate_advantages(batch, scores)
        batch, keep, selected = self.mark_kept(batch, responses, scores)
        log_responses(self.meter, responses, scores, batch.group, selected)
        self.sample_log.add_groups(responses, scores, self.iteration + 1, batch.group, selected)
        if not self.credit.needs.normalizes_batch:  # else they are not final
            self.sample_log.set_advantages(batch.select(keep), self.credit.weights)
        return batch, keep

    def responses(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return responses to these prompts, sampled now or, with `rollout.ahead`, during the batch
        before."""
        if self.ahead is not None:
            responses = self.ahead(prompts)
        else:
            with self.timer("rollout"):
                responses = self.sample_responses(self.rollout, prompts)
        num_tokens = sum(response.num_new for response in responses)
        self.response_tokens += self.ranks.reduce_count(num_tokens)
        return responses

    def sample_responses(self, rollout: Rollout, prompts: Sequence[Prompt]) -> list[Response]:
        """Sample responses to these prompts with the current weights of the rollout, and count
        their tokens."""
        responses = generate_in_order(
            rollout, prompts, samples=self.batch.samples, iteration=self.iteration
        )
        self.sampled_tokens += sum(response.num_new for response in responses)
        return responses

    def grade(self, responses: Sequence[Response]) -> Scores:
        """Return the rewards of the responses."""
        with self.timer("reward"):
            return grade(self.reward, responses)

    def build_batch(
        self, prompts: Sequence[Prompt], responses: Sequence[Response], scores: Scores
    ) -> Experience:
        """Return the responses as rows with the rewards that the estimator reads."""
        first = self.total_batches * len(prompts)
        group = first + torch.arange(len(prompts)).repeat_interleave(self.batch.samples)
        self.total_batches += 1
        if self.reward_scale is not None:
            self.reward_scale.update(scores.values, self.ranks)
        rewards = self.credit.rewards(scores, self.scale(scores.values))
        batch = self.as_rows(responses, rewards, group)
        if self.settings.positive_coefficient:
            score = correctness_or_reward(scores).float().to(self.device)
            batch = replace(batch, score=score)
        if self.credit.needs.turns:
            turn, state = turn_columns(responses, batch.tokens.shape)
            batch = replace(batch, turn=turn.to(self.device), state=state.to(self.device))
        if self.teacher is not None:
            with self.timer("teacher"):
                logprobs = self.teacher.logprobs(responses, scores, batch, self.scorer, self.meter)
            batch = replace(batch, teacher_logprobs=logprobs)
        return batch

    def as_rows(self, responses: Sequence[Response], rewards: Scores, group: Tensor) -> Experience:
        """Return the responses as tensors on the device."""
        version, pad_id = self.iteration, self.policy.pad_id
        batch = collate(responses, rewards, group, policy_version=version, pad_id=pad_id)
        if self.policy.is_mixture:
            experts = self.policy.routers.unrecorded_experts(batch.tokens)
            batch = replace(batch, routed_experts=experts)
        return batch.to(self.device)

    def scale(self, values: Sequence[float | None]) -> Sequence[float | None]:
        """Normalise and clip rewards, if the settings say so."""
        if self.reward_scale is None:
            return values
        return list(map(self.reward_scale, values))

    def estimate_advantages(self, batch: Experience, scores: Scores) -> Experience:
        """Add values, old and reference log-probabilities as needed, and advantages, which
        `normalize_advantages` completes."""
        kl_in_reward = self.reference is not None and self.kl.where == "reward"
        if self.critic is not None or kl_in_reward:
            batch = self.scorer.add_old_logprobs_and_values(batch)
        if self.reference is not None:
            if not self.full_kl:
                batch = self.scorer.add_ref_logprobs(batch, self.reference.policy)
            self.meter.mean("train/kl_coefficient", self.kl.coefficient)
        if self.teacher is not None:
            batch = self.scorer.add_old_logprobs(batch, torch.ones_like(batch.on_policy))
            log_teacher(self.meter, batch, teacher_log_ratio(batch))
        penalty = self.kl_penalty(batch) if kl_in_reward else torch.zeros_like(batch.rewards)
        batch = self.credit.estimate(batch, scores, penalty, monte_carlo=self.pretrains_critic)
        if batch.returns is not None and batch.values is not None:
            log_critic(self.meter, batch.returns, batch.values, batch.mask, self.ranks)
        return batch

    def kl_penalty(self, batch: Experience) -> Tensor:
        """Return beta * KL from the reference per token, 0 in masked slots."""
        assert batch.ref_logprobs is not None
        kl = torch.where(batch.mask, self.kl(batch.old_logprobs, batch.ref_logprobs), 0.0)
        self.meter.mean("train/kl_ref", kl, batch.mask)
        return self.kl.coefficient * kl

    def normalize_advantages(self, batch: Experience) -> Experience:
        """Normalise the advantages over the rows of an iteration, if the estimator does so."""
        return self.credit.normalize(batch)

    def mark_kept(
        self, batch: Experience, responses: Sequence[Response], scores: Scores
    ) -> tuple[Experience, Tensor, Tensor]:
        """Apply the overlong filter and `sampling`.

        Returns the rows and two masks [N]. The first is True on the rows of groups to keep: groups
        with a selected row that has tokens in the loss. The second is True on the rows that
        `sampling` selected. A row that is not selected counts in the baseline of its group, but
        not in the loss: its mask becomes empty."""
        if self.settings.overlong_filter:
            overlong = torch.tensor([r.overlong for r in responses], device=self.device)
            batch = replace(batch, mask=batch.mask & ~overlong[:, None])
        if lacks_correctness(scores):
            self.meter.mean("train/selected_by_reward", 1.0)
        selected = self.select(correctness_or_reward(scores).to(self.device), batch)
        keep = torch.isin(batch.group, batch.group[selected & batch.mask.any(1)])
        return replace(batch, mask=batch.mask & selected[:, None]), keep, selected

    def select(self, scores: Tensor, batch: Experience) -> Tensor:
        """Return a mask of the rows that `sampling` selects by `scores` [N] (NaN: unscored)."""
        scored = (~scores.isnan()).nonzero().squeeze(1)
        selected = torch.zeros_like(scores, dtype=torch.bool)
        chosen = self.sampling(scores[scored].float(), batch.group[scored])
        size = (len(scored),)
        check_returned(self.sampling, "sampling", "the selection", chosen, size, is_mask=True)
        selected[scored] = chosen
        return selected

    # Optimizer steps

    def update(self, fresh: Experience) -> None:
        """Make epochs x minibatches optimizer steps on the rows of one iteration."""
        fresh = self.normalize_advantages(fresh)
        self.credit.check(fresh, self.ratio_needs.level, self.ranks)
        self.sample_log.set_advantages(fresh, self.credit.weights)
        no_advantage = torch.where(fresh.mask, fresh.advantages, 0.0).eq(0).all(1)
        self.meter.mean("train/zero_advantage_fraction", no_advantage, fresh.mask.any(1))
        batch = fresh
        for extension in self.extensions:
            batch = extension.before_update(batch)
        if self.critic is not None and batch.returns is not None:
            self.value_clip = clip_range(batch.returns, batch.mask, self.critic_config.clip)
        plan = self.minibatches(len(batch))
        batch = self.add_old_logprobs(batch, plan[0])
        age = (self.iteration - batch.sampler_version).double()
        self.meter.mean("train/replayed_fraction", (len(batch) - len(fresh)) / len(batch))
        self.meter.mean("train/stale_fraction", (age > 0).double())
        self.meter.maximum("train/staleness_max", age, batch.mask.any(1))
        with self.timer("update"), self.update_mode():
            num_steps, stopped = self.optimize(batch, plan)
        self.sample_log.set_trained()
        self.meter.mean("train/early_stop", float(stopped))
        self.meter.mean("train/steps_done", num_steps / len(plan))
        for extension in self.extensions:
            extension.after_update(batch, len(fresh))

    def add_old_logprobs(self, batch: Experience, first: Tensor) -> Experience:
        """Drop the groups that the buffer does not keep (`drop_surplus`), then store old
        log-probabilities of `batch` and of the groups that stay, before the policy changes. With
        one epoch, rows of the first minibatch, `first`, need none: they are used once, while pi is
        still pi_old. An extension may read them all the same."""
        extensions_need = any(extension.needs_old_logprobs for extension in self.extensions)
        with self.timer("score"):
            rows = Experience.concat([batch, self.drop_surplus()])
            needed = torch.ones_like(rows.on_policy)
            needed[first] = self.batch.epochs > 1 or extensions_need
            rows = self.scorer.add_old_logprobs(rows, needed)
        self.buffer.kept = rows.select(torch.arange(len(batch), len(rows)))
        return rows.select(torch.arange(len(batch)))

    def drop_surplus(self) -> Experience:
        """Keep the newest surplus groups for the next iteration, at most as many as an iteration
        trains on, and return these. A rank that kept more would only train on stale groups."""
        num_groups = self.batch.prompts // self.ranks.world_size
        if self.settings.surplus == "drop":
            num_groups = 0
        self.meter.mean("train/surplus_groups", self.buffer.num_groups)
        return self.drop_older_groups(num_groups)

    def drop_older_groups(self, num_groups: int) -> Experience:
        """Drop all kept groups except the newest ones, and return these. In iterations that are
        skipped, the buffer of a rank that keeps many groups would grow."""
        newest, num_dropped = self.buffer.keep_newest(num_groups)
        self.meter.sum("train/dropped_groups", num_dropped)
        return newest

    def optimize(self, batch: Experience, plan: Sequence[Tensor]) -> tuple[int, bool]:
        """Make the optimizer steps of `plan`. Returns how many, skipped ones included, and True if
        an extension ended them."""
        for i, indices in enumerate(plan):
            minibatch = batch.select(indices)
            # In the first step pi_old is pi, also where old log-probabilities are stored. Rows of
            # an iteration without steps are still on_policy: the policy has not changed since.
            is_exact = (minibatch.policy_version == self.iteration) & (i == 0)
            minibatch = replace(minibatch, on_policy=minibatch.on_policy | is_exact)
            more = []
            for extension in self.extensions:
                more += extension.before_step(minibatch)
            self.kl_stats = torch.zeros(2, dtype=torch.float64, device=self.device)
            self.train_step(minibatch, *more)
            if any(extension.should_stop() for extension in self.extensions):
                return i + 1, True
        return len(plan), False

    def train_step(self, minibatch: Experience, *more: tuple[Any, Loss]) -> None:
        super().train_step(self.select_tokens(minibatch), *more)

    def select_tokens(self, rows: Experience) -> Experience:
        """Return the rows of an optimizer step with their selected tokens, if `tokens` compares
        those of several rows."""
        if not self.tokens.needs.step:
            return rows
        output = self.scorer.score(rows, self.policy)
        return self.tokens.before_step(rows, output, self.optimizer_steps)

    # Loss

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        """Return the loss of a microbatch: `-aggregate(w objective + c H - beta KL)`, the terms of
        extensions and the value loss. Losses on other rows, such as PTX, are those of
        `Extension.before_step`."""
        output = self.forward_policy(micro)
        old_logprobs = torch.where(
            micro.on_policy[:, None], output.logprobs.detach(), micro.old_logprobs
        )
        objective = self.objective(micro, output, old_logprobs)
        c = self.entropy_bonus.coefficient
        if c:
            objective = objective + c * output.entropy
        kl = output.divergence  # with kl=full; other KLs read the log-probabilities
        if micro.ref_logprobs is not None and self.kl.where == "loss":
            # forwards with `scored_tokens` give values of other tokens too, of any size
            logprobs = torch.where(micro.mask, output.logprobs, 0.0)
            kl = self.kl(logprobs, torch.where(micro.mask, micro.ref_logprobs, 0.0))
            check_returned(self.kl, "kl", "the divergence", kl, micro.mask.shape)
        if kl is not None:
            objective = objective - self.kl.coefficient * kl
            self.meter.mean("train/kl_ref", kl, micro.mask)
        total = self.aggregation(objective, micro.mask, totals)
        check_returned(self.aggregation, "aggregation", "the loss", total, ())
        loss = -total
        for extension in self.extensions:
            term = extension.loss_term(micro, output, totals)
            if term is not None:
                check_gradient(extension, term)
                loss = loss + term
        if output.values is not None and micro.returns is not None:
            loss = loss + self.value_loss(micro, output.values, totals)
        return loss

    @property
    def needs_entropy(self) -> bool:
        """True if the loss trains `PolicyOutput.entropy`, which has no gradient otherwise. A
        subclass with a term of its own on the entropy returns True."""
        if self.entropy_bonus.coefficient or self.ratio_needs.entropy:
            return True
        return any(extension.needs_entropy for extension in self.extensions)

    def forward_policy(self, micro: Experience) -> PolicyOutput:
        """Forward policy and critic with the outputs that the loss needs."""
        for extension in self.extensions:
            scored = extension.scored_tokens(micro)
            if scored is not None:
                micro = replace(micro, mask=micro.mask | scored)
        other = None
        if self.reference is not None and self.full_kl:
            other = self.scorer.other(micro, self.reference.policy, self.kl)
        return self.scorer.forward(
            micro,
            self.policy,
            entropy=self.needs_entropy,
            other=other,
            router_logits=any(extension.needs_router_logits for extension in self.extensions),
        )

    def objective(self, micro: Experience, output: PolicyOutput, old_logprobs: Tensor) -> Tensor:
        """Return the objective [N, T] of the ratio on the selected tokens, weighted by the
        correction. Log it, and add to `kl_stats`."""
        log_ratio = torch.where(micro.mask, output.logprobs - old_logprobs, 0.0)
        options = {"old_logprobs": old_logprobs} if self.ratio_needs.old_logprobs else {}
        if self.ratio_needs.entropy:
            options["entropy"] = output.entropy
        surrogate = self.ratio(log_ratio, micro.advantages, micro.mask, **options)
        for name in ("objective", "clipped"):
            value = field_of(self.ratio, "ratio", name, surrogate)
            shape = micro.mask.shape
            check_returned(self.ratio, "ratio", name, value, shape, is_mask=name == "clipped")
        self.kl_stats += log_update(
            self.meter,
            micro,
            log_ratio,
            old_logprobs,
            output.entropy,
            surrogate.clipped,
            self.iteration,
            compare_sampler=self.scorer.is_at_sampling_temperature,
        )
        objective = surrogate.objective
        trained = self.tokens(micro, output)
        if trained is not None:
            self.meter.mean("train/trained_fraction", trained.double(), micro.mask)
            self.sample_log.add_selection(micro, trained)
            objective = self.tokens.objective(objective, log_ratio, trained)
        correction = self.correction(old_logprobs, micro.behavior_logprobs, micro.mask)
        if correction is None:
            return objective
        log_correction(self.meter, correction, micro.mask)
        return correction.weights * objective

    def value_loss(self, micro: Experience, values: Tensor, totals: Totals) -> Tensor:
        """Return the weighted regression of the critic on the returns."""
        assert micro.values is not None
        assert micro.returns is not None
        regression, clipped = value_loss(
            values, micro.values, micro.returns, micro.mask, self.value_clip
        )
        self.meter.mean("train/value_loss", regression, micro.mask)
        self.meter.mean("train/value_clip_fraction", clipped.double(), micro.mask)
        coefficient: float = self.critic_config.coefficient
        return coefficient * TokenMean()(regression, micro.mask, totals)

    # The end of an iteration

    def sync_rollout(self) -> None:
        if self.ahead is not None:
            with self.timer("rollout"):
                self.ahead.wait()
        super().sync_rollout()

    def iteration_metrics(self) -> dict[str, float]:
        seconds = self.timer.seconds["rollout"] + self.timer.seconds["rollout_ahead"]
        num_tokens = self.ranks.reduce_count(self.sampled_tokens)
        metrics = super().iteration_metrics()
        metrics["perf/sampled_tokens"] = num_tokens
        if num_tokens:  # all responses of the last iteration may have been sampled ahead
            metrics["perf/response_tokens_per_s"] = num_tokens / max(seconds, 1e-9)
        return metrics

    # Lightning's hooks, preflight and checkpoint

    def on_fit_start(self) -> None:
        """Check that the teacher's prompts fit, and show what the policy's show.

        Raises:
            UserError: they do not.
        """
        super().on_fit_start()
        self.kl_stats = self.kl_stats.to(self.device)
        if self.teacher is None:
            return
        prompts = self.splits.train
        self.teacher.check_context(prompts, self.rollout.max_tokens)
        if self.teacher.part.shows_more and num_added_tokens(self.policy, self.rollout, prompts):
            raise UserError(
                "the environment adds instructions or tools to the policy's prompt, which the "
                "teacher's prompt does not have: type environment=single_turn"
            )

    @torch.no_grad()
    def example_rows(self, responses: Sequence[Response], group: Tensor) -> Experience:
        batch = self.as_rows(responses, Scores([1.0] * len(responses)), group)
        batch = self.scorer.add_old_logprobs_and_values(batch)
        if self.reference is not None and not self.full_kl:
            batch = self.scorer.add_ref_logprobs(batch, self.reference.policy)
        return replace(batch, advantages=batch.mask.float(), returns=batch.values)

    @property
    def controllers(self) -> dict[str, Controller]:
        return {**super().controllers, "entropy_bonus": self.entropy_bonus}

    @property
    def stateful(self) -> dict[str, Any]:
        parts = {**super().stateful, "buffer": self.buffer}
        return parts if self.reward_scale is None else {**parts, "reward_scale": self.reward_scale}

    def counters(self) -> dict[str, Any]:
        return super().counters() | {"total_batches": self.total_batches}

    def load_counters(self, state: Mapping[str, Any]) -> None:
        super().load_counters(state)
        self.total_batches = state["total_batches"]
