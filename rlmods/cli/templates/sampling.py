"""A sampling filter of your own: `python train.py sampling=name`."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Name:
    """Keeps responses whose score is at most `most`, and those that have none (NaN)."""

    most: float = 0.9
    """Highest score that is still worth training on."""

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        """
        Args:
            scores: [N], correctness, or the total reward where that is unknown.
            group: [N], equal for the responses to one prompt.
        """
        return ~torch.gt(scores, self.most)
