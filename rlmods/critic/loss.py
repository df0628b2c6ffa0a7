"""The critic's regression."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def value_loss(
    values: Float[Tensor, "N T"],
    old_values: Float[Tensor, "N T"],
    returns: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    clip: float | None = 0.2,
) -> tuple[Float[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """0.5 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) per token, and where the clipped term decided it.

    V_old is what the critic said when the response was collected. `clip` None leaves the plain square. 0 in masked slots, whatever they
    hold. The value clip of PPO's reference implementation (arXiv:2006.05990, section 3.2; arXiv:2203.02155 keeps it)."""
    values, old_values, returns = (torch.where(mask, x, 0.0) for x in (values, old_values, returns))
    free = (values - returns).square()
    if clip is None:
        return 0.5 * free, torch.zeros_like(mask)
    bound = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return 0.5 * torch.maximum(free, bound), bound > free
