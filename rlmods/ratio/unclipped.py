"""The plain importance ratio."""

from dataclasses import dataclass

import torch

from rlmods.ops import importance_ratio
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
class Unclipped:
    """Unclipped surrogate: r A, which is REINFORCE at r = 1 and importance-weighted elsewhere. PPO,
    arXiv:1707.06347, equation 6."""

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        objective = importance_ratio(log_ratio, mask) * torch.where(mask, advantages, 0.0)
        return Surrogate(objective, torch.zeros_like(mask))
