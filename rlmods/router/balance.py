"""How evenly tokens are spread over experts, to watch and as a loss. Sums over tokens: they add up over microbatches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def load(routes: Int[Tensor, "N T L k"], where: Bool[Tensor, "N T"], num_experts: int) -> Float[Tensor, "L E"]:
    """How often each expert of each layer was chosen at the tokens `where`; choices of -1 do not count."""
    chosen = routes[where].long()
    layer = torch.arange(routes.shape[2], device=routes.device)[:, None].expand_as(chosen)
    counts = torch.bincount((layer * num_experts + chosen)[chosen >= 0], minlength=routes.shape[2] * num_experts)
    return counts.view(-1, num_experts).double()


def balance_loss(
    logits: Sequence[Float[Tensor, "S E"]], where: Bool[Tensor, " S"], share: Float[Tensor, " E"], num_tokens: Tensor | float
) -> Float[Tensor, ""]:
    """`E sum_e f_e P_e`: f_e is the share of tokens that expert e is among the k of, P_e its mean probability, both over all tokens of an
    optimizer step and all layers. k where all is even; the gradient is that of P alone.

    Switch Transformer, arXiv:2101.03961, equations 4 to 6, as transformers' `load_balancing_loss_func` has it. This is the part of the
    tokens `where` in a step of `num_tokens` tokens; `share` [E] is f of the whole step, so that parts add up however it is cut.
    """
    total = sum((layer.float().softmax(-1)[where].sum(0) for layer in logits), torch.zeros_like(share, dtype=torch.float32))
    return len(share) * (share.float() * total).sum() / (num_tokens * len(logits))
