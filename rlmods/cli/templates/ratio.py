"""Custom ratio: `python train.py ratio=name`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlmods.types import Surrogate


@dataclass(frozen=True)
class Name:
    """Surrogate min(r, ceiling) * A with r = pi / pi_old, which bounds the weight of each token's
    advantage."""

    ceiling: float = 2.0
    """Upper bound of the ratio."""

    def __call__(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Surrogate:
        """
        Args:
            log_ratio: [N, T], log pi - log pi_old, 0 outside the mask.
            advantages: [N, T].
            mask: [N, T], True on response tokens.
        """
        ratio = log_ratio.exp()
        return Surrogate(
            objective=ratio.clamp(max=self.ceiling) * advantages,
            clipped=torch.gt(ratio, self.ceiling) & mask,
        )
