"""A ratio policy of your own: `python train.py ratio=name`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlmods.types import Surrogate


@dataclass(frozen=True)
class Name:
    """min(r, ceiling) * A with r = pi / pi_old: no token counts for more than `ceiling` times its advantage."""

    ceiling: float = 2.0
    """Largest ratio that is used."""

    def __call__(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Surrogate:
        """
        Args:
            log_ratio: [N, T], log pi - log pi_old, 0 outside the mask.
            advantages: [N, T].
            mask: [N, T], True on the tokens of the response.
        """
        ratio = log_ratio.exp()
        return Surrogate(objective=ratio.clamp(max=self.ceiling) * advantages, clipped=torch.gt(ratio, self.ceiling) & mask)
