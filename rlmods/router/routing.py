"""Training options for the routers of mixture-of-experts models."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.settings.bounds import Count, NonNegative, bounded
from rlmods.types import RoutedExperts, Scalar, TokenMask


@dataclass(frozen=True)
@bounded("router")
class Routing:
    """Routing replay, update frequency and load balancing of the routers of a mixture of experts.

    If a token's experts change between the old log-probabilities and an update, its ratio pi /
    pi_old compares two different subnetworks, and clipping cannot distinguish that noise from
    learning. Routing replay (arXiv:2507.18071, section 5.3; arXiv:2510.11370) uses, for every token
    of a row including the prompt, the experts chosen when the old log-probabilities were computed.
    Gating weights come from live logits, so the router still learns. Ratios of whole sequences
    (ratio=sequence) are stable without replay.

    The recorded choices are the trainer's. R3 (arXiv:2510.11370) replays the sampling engine's
    choices, which would also close the gap between sampler and trainer
    (`train/sampler_logprob_gap`); no rollout here reports them.

    `train/router_changed_fraction` is the fraction of live choices that differ from the recorded
    ones, `train/router_load_max` the load of the busiest expert of any layer (1: uniform, E / k:
    all tokens use it). Reference and critic always use their own choices."""

    replay: bool = False
    """Replay the recorded choices in optimizer steps; False: routers choose in every forward."""
    every: Count | None = 1
    """Update the routers only every N iterations; they have no gradient in the others. null:
    routers are frozen. Even with frozen weights their choices change with the hidden states, unless
    `replay` is True."""
    aux_coefficient: NonNegative = 0.0
    """Weight of the load-balancing loss (`rlmods.router.routing`) relative to the RL loss; 0: none.
    Its loads are counted from the recorded choices over a whole optimizer step; to record them, the
    rows of an iteration's first step are scored too."""

    def __call__(self, policy: Policy) -> None:
        """Check the trained policy, and freeze its routers if `every` is None.

        Raises:
            UserError: the policy has no routers, and an option differs from its default.
        """
        if not policy.routers and self != Routing():
            name = type(policy.model).__name__
            raise UserError(
                f"router= needs a mixture of experts, and {name} has no routers that support "
                "it: type router=free without router.*"
            )
        if self.every is None:
            for parameter in policy.routers.parameters():
                parameter.requires_grad_(False)

    def is_frozen(self, iteration: int) -> bool:
        """Return True if the routers are not updated in this iteration (the number of completed
        iterations)."""
        return self.every is None or (iteration + 1) % self.every != 0


def count_experts(
    routed_experts: RoutedExperts, mask: TokenMask, num_experts: int
) -> Float[Tensor, "L E"]:
    """Count how often each expert of each layer was chosen at the masked tokens; choices of -1 do
    not count."""
    experts = routed_experts[mask].long()
    layer = torch.arange(routed_experts.shape[2], device=routed_experts.device)[:, None].expand_as(
        experts
    )
    counts = torch.bincount(
        (layer * num_experts + experts)[experts >= 0],
        minlength=routed_experts.shape[2] * num_experts,
    )
    return counts.view(-1, num_experts).double()


def balance_loss(
    logits: Sequence[Float[Tensor, "S E"]],
    mask: Bool[Tensor, " S"],
    fractions: Float[Tensor, " E"],
    num_tokens: Tensor | float,
) -> Scalar:
    """Return `E sum_e f_e P_e`: f_e is the fraction of tokens routed to expert e (k experts per
    token), P_e its mean probability, both over all tokens of an optimizer step and all layers. It
    is k for a uniform load; only P has a gradient.

    Switch Transformer, arXiv:2101.03961, equations 4 to 6, as in `load_balancing_loss_func` of
    transformers. The result is the contribution of the masked tokens to a step of `num_tokens`
    tokens; `fractions` [E] is f of the whole step, so that microbatches add up."""
    total = sum(
        (layer.float().softmax(-1)[mask].sum(0) for layer in logits),
        torch.zeros_like(fractions, dtype=torch.float32),
    )
    return len(fractions) * (fractions.float() * total).sum() / (num_tokens * len(logits))
