"""Log-probabilities and values of given responses under policy, reference and critic."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from rlmods.critic.networks import ValueHead
from rlmods.distributed.collectives import Ranks
from rlmods.policy.base import DivergenceFrom, Policy, PolicyOutput
from rlmods.protocols import Rollout
from rlmods.training import segments
from rlmods.training.train_step import Microbatches
from rlmods.types import Experience


class LogprobScorer:
    """Teacher-forced forwards of policy, critic and reference. New, old and reference
    log-probabilities all come from `forward`."""

    def __init__(
        self,
        policy: Policy,
        critic: nn.Module | None,
        rollout: Rollout,
        microbatches: Microbatches,
        ranks: Ranks,
        temperature: float | None = None,
        *,
        replay_experts: bool = False,
    ) -> None:
        """
        Args:
            critic: value network, value head on the policy's trunk, or None.
            temperature: log-probabilities are of `logits / temperature`; None: that of the rollout.
            replay_experts: route tokens to the recorded experts in forwards of the policy.
        """
        self.policy = policy
        self.critic = critic
        self.rollout = rollout
        self.microbatches = microbatches
        self.ranks = ranks
        self.fixed_temperature = temperature
        self.replay_experts = replay_experts

    @property
    def temperature(self) -> float:
        """Temperature of the log-probabilities: a fixed one, or the rollout's current one."""
        fixed = self.fixed_temperature
        return self.rollout.temperature if fixed is None else fixed

    @property
    def is_at_sampling_temperature(self) -> bool:
        """True if the log-probabilities are of the distribution that responses are sampled from."""
        return self.temperature == self.rollout.temperature

    def forward(
        self,
        micro: Experience,
        policy: Policy,
        *,
        critic: bool = True,
        entropy: bool = False,
        router_logits: bool = False,
        states: bool = False,
        other: DivergenceFrom | None = None,
    ) -> PolicyOutput:
        """Forward one microbatch, with values if there is a critic. A critic that is a head on the
        policy's trunk is computed in the same forward.

        Args:
            entropy, router_logits, states, other: as in `Policy.forward`.
        """
        network = self.critic if critic else None
        head = network if isinstance(network, ValueHead) else None
        replays = self.replay_experts and policy is self.policy
        run = partial(
            policy,
            temperature=self.temperature,
            value_head=head,
            entropy=entropy,
            router_logits=router_logits,
            states=states,
            other=other,
        )
        experts = micro.routed_experts if replays else None
        if micro.cuts is None:
            output: PolicyOutput = run(micro.tokens, micro.mask, routed_experts=experts)
        else:
            output = segments.forward(run, micro, experts)
        if network is None or head is not None:
            return output
        return output._replace(values=segments.values(network, micro))

    @torch.no_grad()
    def other(
        self, micro: Experience, model: Policy, divergence: Callable[[Tensor, Tensor], Tensor]
    ) -> DivergenceFrom:
        """Forward one microbatch with another model, for the `divergence` of the policy from it
        over the whole vocabulary."""
        states = self.forward(micro, model, critic=False, states=True).states
        assert states is not None
        return DivergenceFrom(states, model.output_layer(), divergence)

    @torch.no_grad()
    def score(self, batch: Experience, policy: Policy, *, critic: bool = False) -> PolicyOutput:
        """Return log-probabilities, entropies and, with `critic`, values [N, T] of all rows, and
        the routed experts."""
        logprobs = torch.zeros_like(batch.advantages)
        entropy = torch.zeros_like(logprobs)
        values = torch.zeros_like(logprobs)
        experts = batch.routed_experts
        if experts is not None:
            experts = torch.full_like(experts, -1)
        for micro, rows in self.microbatches(batch):
            output = self.forward(micro, policy, critic=critic)
            for column, x in (
                (logprobs, output.logprobs),
                (entropy, output.entropy),
                (values, output.values),
                (experts, output.routed_experts),
            ):
                if column is not None and x is not None:
                    column[rows, : x.shape[1]] = x[: len(rows)]
        return PolicyOutput(logprobs, entropy, values, experts)

    def add_old_logprobs(self, batch: Experience, needed: Tensor) -> Experience:
        """Compute `old_logprobs` and their experts in the rows `needed` [N] that have none yet."""
        missing = needed & batch.on_policy & batch.mask.any(1)
        rows = missing.nonzero().squeeze(1)
        # Ranks may need different numbers of rows, but every rank must take part in the forwards.
        if not self.ranks.reduce_count(len(rows)):
            return batch
        some_row = torch.tensor([0], device=self.ranks.device)
        part = batch.select(rows) if len(rows) else batch.select(some_row).without_loss()
        output = self.score(part, self.policy)
        old_logprobs = batch.old_logprobs.index_copy(0, rows, output.logprobs[: len(rows)])
        experts = batch.routed_experts
        if experts is not None and output.routed_experts is not None:
            experts = experts.index_copy(0, rows, output.routed_experts[: len(rows)])
        return replace(
            batch,
            old_logprobs=old_logprobs,
            on_policy=batch.on_policy & ~missing,
            routed_experts=experts,
        )

    def add_old_logprobs_and_values(self, batch: Experience) -> Experience:
        """Store `old_logprobs` of all rows, so that `on_policy` becomes False, the experts chosen
        for them and, if there is a critic, `values`."""
        output = self.score(batch, self.policy, critic=True)
        return replace(
            batch,
            old_logprobs=output.logprobs,
            on_policy=torch.zeros_like(batch.on_policy),
            values=batch.values if self.critic is None else output.values,
            routed_experts=output.routed_experts,
        )

    def add_ref_logprobs(self, batch: Experience, reference: Policy) -> Experience:
        """Compute `ref_logprobs` with the reference policy."""
        return replace(batch, ref_logprobs=self.score(batch, reference).logprobs)
