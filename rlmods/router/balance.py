"""Expert load, the load-balancing loss and router entropy. All are sums over tokens, so they add up
over microbatches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.types import RoutedExperts, Scalar, TokenMask


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


def router_entropy(
    logits: Sequence[Float[Tensor, "S E"]], mask: Bool[Tensor, " S"]
) -> Float[Tensor, " M"]:
    """Return the entropy of the routers' softmax over experts at each masked token, mean over
    layers, nats: 0 (one expert) to log E."""
    logprobs = torch.stack([layer[mask].float().log_softmax(-1) for layer in logits])
    return -(logprobs.exp() * logprobs).sum(-1).mean(0)
