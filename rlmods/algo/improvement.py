"""Experience in, optimizer steps out: the half of online learning that does not care where rows come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.algo.optimizer_steps import Loss
from rlmods.algo.scoring import Scoring
from rlmods.critic.loss import value_loss
from rlmods.distributed.sharding import is_sharded
from rlmods.protocols import KL, Aggregation, Ratio
from rlmods.router import Routing
from rlmods.training import logging as record
from rlmods.training.controllers import EntropyBonus
from rlmods.training.experts import Experts
from rlmods.training.ptx import Stream
from rlmods.training.reference import Reference
from rlmods.training.replay import Replay
from rlmods.types import Experience, Prompt, Totals, UserError

REPLAY = 1_000_000
"""Purpose of a generator that no epoch has."""


class Improvement(Scoring):
    """Maximises `aggregate(ratio(log pi - log pi_old, A)) + entropy_coefficient * H - coefficient * KL` on given rows, beside the critic's
    regression where there is a critic, and imitation of a stream of responses where `ptx_coefficient` asks for it."""

    groups: ClassVar[tuple[str, ...]] = (*Learner.groups, "router", "rollout", "reward", "critic", "kl", "ratio", "aggregation")

    samples_responses: ClassVar[bool] = True

    def __init__(
        self,
        *,
        router: Routing,
        critic: Any,
        kl: KL,
        ratio: Ratio,
        aggregation: Aggregation,
        ptx_prompts: Sequence[Prompt],
        entropy_coefficient: float = 0.0,
        target_entropy: float | None = None,
        target_kl: float | None = None,
        replay_fraction: float = 0.0,
        replay_staleness: int = 4,
        ptx_coefficient: float = 0.0,
        ptx_rows: int = 32,
        entropy_rate: float = 0.01,
        reference_every: int | None = None,
        **shared: Any,
    ) -> None:
        """
        Args:
            router: how the routers of a mixture of experts are treated.
            critic: makes the value network out of the policy, or None.
            ptx_prompts: rows whose `meta["response"]` is imitated beside the reward.
            entropy_coefficient: weight of the entropy bonus (nats per token, aggregated as the objective is).
            target_entropy: nats per token near which the weight is steered to keep the entropy; None leaves it fixed.
            target_kl: nats per token; an iteration's steps end early once a minibatch is 1.5 times as far from the old policy.
            replay_fraction: rows of earlier iterations that are trained on again, by fresh rows.
            replay_staleness: iterations a row can be replayed for.
            ptx_coefficient: weight of the imitation loss (InstructGPT's gamma, token mean).
            ptx_rows: rows of it in one optimizer step, at least one a rank.
            entropy_rate: how far the entropy bonus moves in an iteration, by nats that the entropy is off its target.
            reference_every: iterations after which the reference becomes the policy (iterative GRPO); None: never.
        """
        super().__init__(**shared)
        self.kl, self.ratio, self.aggregation, self.target_kl = kl, ratio, aggregation, target_kl
        self.router, self.experts = router, Experts(router, self.policy, self.across_ranks)
        self.value, self.critic = critic, critic(self.policy)
        self.entropy_bonus = EntropyBonus(entropy_coefficient, target_entropy, entropy_rate)
        self.replay = Replay(replay_fraction, replay_staleness)
        self.ptx_coefficient, self.stream = ptx_coefficient, Stream(ptx_prompts, ptx_rows, self.seed)
        self.reference = Reference(self.policy if getattr(kl, "needs_reference", True) else None, reference_every)
        self.moved = torch.zeros(2, dtype=torch.float64)
        """Distance from the old policy in the latest optimizer step: sum over tokens, and tokens."""

    @property
    def networks(self) -> dict[str, nn.Module]:
        return {"policy": self.policy} | ({} if self.critic is None else {"critic": self.critic})

    def parameter_groups(self) -> list[dict[str, Any]]:
        groups = super().parameter_groups()
        if self.critic is not None and self.value.lr is not None:
            groups[1]["lr"] = self.value.lr
        return groups

    @property
    def controllers(self) -> dict[str, Any]:
        return super().controllers | {"entropy_bonus": self.entropy_bonus, "replay": self.replay}

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.ptx_coefficient and self.stream.num_rows < self.trainer.world_size:
            raise UserError(f"algo.ptx_rows={self.stream.num_rows} leaves ranks without rows: type algo.ptx_rows={self.trainer.world_size}")
        self.replay.to(self.device)
        self.moved = self.moved.to(self.device)
        self.experts.warn(self.ratio, self.batch.epochs * self.batch.minibatches > 1 or self.replay.fraction > 0)

    def on_after_backward(self) -> None:
        self.experts.rest(self.iteration)

    def improve(self, fresh: Experience, waiting: Experience) -> Experience:
        """Epochs x minibatches of optimizer steps on the rows of one iteration.

        Returns the `waiting` rows with the log-probabilities of the policy before it moves on."""
        experience = self.with_replay(fresh)
        plan = self.minibatches(len(experience))
        # The first minibatch meets the policy that sampled it: its old log-probs are the new ones, unless they are needed again.
        later = torch.ones(len(experience), dtype=torch.bool, device=self.device)
        steered = hasattr(self.ratio, "on_iteration_end")
        later[plan[0]] = self.batch.epochs > 1 or self.replay.fraction > 0 or steered or self.router.aux_coefficient > 0
        with self.timed("score"):
            rows = Experience.concat([experience, waiting])
            rows = self.scored(rows, torch.cat([later, torch.ones_like(waiting.group, dtype=torch.bool)]))
        experience = rows.select(torch.arange(len(later)))
        self.meter.mean("train/stale_fraction", (experience.version < self.iteration).double())
        age = (self.iteration - experience.version).double()
        self.meter.maximum("train/staleness_max", age, experience.mask.any(1))
        with self.timed("update"):
            for network in self.networks.values():
                network.train(self.policy.gradient_checkpointing)
            self.optimize(experience, plan)
            self.experts.finish(self.meter)
            for network in self.networks.values():
                network.eval()
        if steered:
            self.measure_update(experience)
        self.replay.keep(experience.select(torch.arange(len(fresh))))
        return rows.select(torch.arange(len(later), len(rows)))

    def measure_update(self, experience: Experience) -> None:
        """`train/kl_update`: distance of the policy from the one that sampled, once the iteration's steps are done."""
        with self.timed("score"):
            d = self.score(experience, self.policy).logprobs - experience.old_logprobs
        fresh = experience.mask & (experience.version == self.iteration)[:, None]
        d = torch.where(fresh, d, 0.0)
        self.meter.mean("train/kl_update", d.exp() - 1 - d, fresh)

    def with_replay(self, fresh: Experience) -> Experience:
        """The rows of this iteration, and some of earlier ones."""
        again = self.replay.draw(len(fresh), self.iteration, self.generator(REPLAY))
        self.meter.mean("train/replayed_fraction", 0.0 if again is None else len(again) / (len(fresh) + len(again)))
        return fresh if again is None else Experience.concat([fresh, again])

    def optimize(self, experience: Experience, plan: Sequence[Tensor]) -> None:
        """The optimizer steps of `plan`, fewer where the policy has moved too far."""
        for i, chosen in enumerate(plan):
            batch = experience.select(chosen)
            if i == 0:
                fresh = batch.version == self.iteration
                batch = replace(batch, old_logprobs=batch.old_logprobs.masked_fill(fresh[:, None], torch.nan))
            self.experts.begin_step(batch)
            self.moved.zero_()
            self.update(batch, *self.imitation())
            distance, tokens = self.across_ranks(self.moved)
            if self.target_kl is not None and distance > 1.5 * self.target_kl * tokens:
                self.meter.mean("train/early_stop", 1.0)
                self.meter.mean("train/steps_done", (i + 1) / len(plan))
                return
        self.meter.mean("train/early_stop", 0.0)
        self.meter.mean("train/steps_done", 1.0)

    def imitation(self) -> list[tuple[Experience, Loss]]:
        """Rows of the stream and their loss, for one optimizer step."""
        if not self.ptx_coefficient:
            return []
        rows = self.stream.rows(self.optimizer_steps, self.policy, self.global_rank, self.trainer.world_size).to(self.device)

        def loss(micro: Experience, totals: Totals) -> Tensor:
            found = self.ptx_coefficient * self.stream.loss(self.policy, self.meter, micro, totals)
            # DDP waits for the gradient of every parameter, and this loss has none of the critic's.
            unused = () if self.critic is None or is_sharded(self.critic) else self.critic.parameters()
            return found + sum((p.sum() * 0.0 for p in unused), torch.zeros_like(found))

        return [(rows, loss)]

    # The loss

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        weight = self.entropy_bonus.coefficient
        scored = self.forwarded(micro, self.policy, entropy=weight != 0, router_logits=self.router.aux_coefficient > 0)
        logprobs, entropy, values = scored[:3]
        old = torch.where(micro.old_logprobs.isnan(), logprobs.detach(), micro.old_logprobs)
        log_ratio = torch.where(micro.mask, logprobs - old, 0.0)
        surrogate = self.ratio(log_ratio, micro.advantages, micro.mask)
        objective = surrogate.objective
        if weight:
            objective = objective + weight * entropy
        if micro.ref_logprobs is not None and self.kl.where == "loss":
            penalty = self.kl(logprobs, torch.where(micro.mask, micro.ref_logprobs, 0.0))
            objective = objective - self.kl.coefficient * penalty
            self.meter.mean("train/kl_ref", penalty, micro.mask)
        self.moved += record.watch(self.meter, micro, log_ratio, old, entropy, surrogate.clipped, self.iteration)
        loss = -self.aggregation(objective, micro.mask, totals)
        if scored.routes is not None:
            self.experts.watch(self.meter, micro, scored.routes)
        if scored.router_logits is not None:
            loss = loss + self.experts.loss(micro, scored)
        if values is not None and micro.returns is not None and micro.values is not None:
            regression, clipped = value_loss(values, micro.values, micro.returns, micro.mask, self.value.clip)
            self.meter.mean("train/value_loss", regression, micro.mask)
            self.meter.mean("train/value_clip_fraction", clipped.double(), micro.mask)
            loss = loss + self.value.coefficient * TokenMean()(regression, micro.mask, totals)
        return loss
