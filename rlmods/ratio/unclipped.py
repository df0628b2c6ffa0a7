"""The plain importance ratio."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import importance_ratio
from rlmods.types import Surrogate


@dataclass(frozen=True)
class Unclipped:
    """Unclipped surrogate: r A, which is REINFORCE at r = 1 and importance-weighted elsewhere. PPO, arXiv:1707.06347, equation 6."""

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        return Surrogate(importance_ratio(log_ratio, mask) * torch.where(mask, advantages, 0.0), torch.zeros_like(mask))
