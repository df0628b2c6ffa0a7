"""Rankings as pairs: P prompts, K candidates each. Rank 0 is the best, equal ranks are ties; `present` is False where there is none."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.ops import masked_mean


def better(rank: Int[Tensor, "P K"], present: Bool[Tensor, "P K"]) -> Bool[Tensor, "P K K"]:
    """True at (p, i, j) where candidate i of prompt p ranks strictly above candidate j: every pair once, ties never."""
    both = present[:, :, None] & present[:, None, :]
    return both & (rank[:, :, None] < rank[:, None, :])


def gaps(x: Float[Tensor, "P K"], present: Bool[Tensor, "P K"]) -> Float[Tensor, "P K K"]:
    """x_i - x_j at (p, i, j). Candidates that are not there may hold anything."""
    x = torch.where(present, x, 0.0)
    return x[:, :, None] - x[:, None, :]


def pair_mean(x: Float[Tensor, "P K K"], where: Bool[Tensor, "P K K"]) -> Float[Tensor, " P"]:
    """Mean over each prompt's true pairs; 0 for a prompt without any."""
    return masked_mean(x.flatten(1), where.flatten(1))


def right(gap: Float[Tensor, "P K K"]) -> Float[Tensor, "P K K"]:
    """1 where i beats j, 0.5 where neither does: over the true pairs its mean is pair accuracy."""
    return (gap.sign() + 1) / 2
