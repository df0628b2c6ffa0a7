"""Log-probabilities and values of given responses under policy, reference and critic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlmods.critic.shared import ValueHead
from rlmods.distributed.collectives import Ranks
from rlmods.policy.base import Other, Policy, PolicyOutput
from rlmods.training import segments
from rlmods.training.train_step import Microbatches
from rlmods.types import Experience


class LogprobScorer:
    """Teacher-forced forwards of policy, critic and reference. New, old and reference
    log-probabilities all come from `forward`."""

    def __init__(
        self,
        policy: Policy,
        critic: Any,
        rollout: Any,
        microbatches: Microbatches,
        ranks: Ranks,
        temperature: float | None = None,
    ) -> None:
        """
        Args:
            critic: value network, value head on the policy's trunk, or None.
            rollout: its temperature is that of the log-probabilities, unless `temperature` is
            given.
            temperature: log-probabilities are those of `logits / temperature`; None: the
            temperature of the rollout.
        """
        self.policy, self.critic, self.rollout, self.microbatches, self.ranks = (
            policy,
            critic,
            rollout,
            microbatches,
            ranks,
        )
        self.fixed_temperature = temperature
        self.replay_experts = False
        """Route tokens to the recorded experts in forwards of the policy (`ExpertRouting`)."""

    @property
    def temperature(self) -> float:
        """Temperature of the log-probabilities: the current one of the rollout, which may change
        during training, or a fixed one."""
        return (
            self.sampling_temperature if self.fixed_temperature is None else self.fixed_temperature
        )

    @property
    def sampling_temperature(self) -> float:
        """Current temperature of the rollout."""
        return float(getattr(self.rollout, "temperature", 1.0))

    @property
    def is_at_sampling_temperature(self) -> bool:
        """True if the log-probabilities are of the distribution that responses are sampled from."""
        return self.temperature == self.sampling_temperature

    def forward(
        self, micro: Experience, policy: Policy, *, critic: bool = True, **outputs: Any
    ) -> PolicyOutput:
        """Forward one microbatch. A critic that is a head on the policy's trunk is computed in the
        same forward.

        Args:
            critic: also compute values.
            outputs: optional outputs of `Policy.forward`: `entropy=True` for its gradient,
            `router_logits=True`, `other=...`.
        """
        head = self.critic if critic and isinstance(self.critic, ValueHead) else None
        experts = micro.routed_experts if self.replay_experts and policy is self.policy else None
        output = segments.forward(
            policy,
            micro,
            temperature=self.temperature,
            value_head=head,
            routed_experts=experts,
            **outputs,
        )
        separate = critic and self.critic is not None and head is None
        return output._replace(values=segments.values(self.critic, micro)) if separate else output

    @torch.no_grad()
    def other(
        self, micro: Experience, model: Policy, divergence: Callable[[Tensor, Tensor], Tensor]
    ) -> Other:
        """Forward one microbatch with another model, for the `divergence` of the policy from it
        over the whole vocabulary."""
        states = self.forward(micro, model, critic=False, states=True).states
        assert states is not None
        return Other(states, model.output_layer(), divergence)

    @torch.no_grad()
    def score(self, batch: Experience, policy: Policy, *, critic: bool = False) -> PolicyOutput:
        """Return log-probabilities, entropies and, with `critic`, values [N, T] of all rows, and
        the routed experts."""
        out = {
            name: torch.zeros_like(batch.advantages) for name in ("logprobs", "entropy", "values")
        }
        if batch.routed_experts is not None:
            out["routed_experts"] = torch.full_like(batch.routed_experts, -1)
        for micro, rows in self.microbatches(batch):
            output = self.forward(micro, policy, critic=critic)._asdict()
            for name in out:
                if (x := output[name]) is not None:
                    out[name][rows, : x.shape[1]] = x[: len(rows)]
        return PolicyOutput(
            out["logprobs"], out["entropy"], out["values"], out.get("routed_experts")
        )

    def add_old_logprobs(self, batch: Experience, needed: Tensor) -> Experience:
        """Compute `old_logprobs`, and the experts chosen for them, in the rows `needed` [N] that do
        not have them yet (NaN)."""
        rows = (needed & batch.old_logprobs.isnan().any(1) & batch.mask.any(1)).nonzero().squeeze(1)
        old_logprobs, experts = batch.old_logprobs.clone(), batch.routed_experts
        # Ranks may need different numbers of rows, but every rank must take part in the forwards.
        if self.ranks.reduce(torch.tensor(len(rows))) > 0:
            part = (
                batch.select(rows)
                if len(rows)
                else batch.select(torch.tensor([0], device=self.ranks.device)).without_loss()
            )
            output = self.score(part, self.policy)
            old_logprobs[rows] = output.logprobs[: len(rows)]
            if experts is not None and output.routed_experts is not None:
                experts = experts.index_copy(0, rows, output.routed_experts[: len(rows)])
        return replace(batch, old_logprobs=old_logprobs, routed_experts=experts)

    def add_values(self, batch: Experience) -> Experience:
        """Compute `old_logprobs`, the experts chosen for them and, if there is a critic, `values`
        of all rows."""
        output = self.score(batch, self.policy, critic=True)
        values = batch.values if self.critic is None else output.values
        return replace(
            batch, old_logprobs=output.logprobs, values=values, routed_experts=output.routed_experts
        )

    def add_ref_logprobs(self, batch: Experience, reference: Policy) -> Experience:
        """Compute `ref_logprobs` with the reference policy."""
        return replace(batch, ref_logprobs=self.score(batch, reference).logprobs)
