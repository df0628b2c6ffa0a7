"""Custom sampling filter: `python train.py sampling=name`."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Name:
    """Keep responses whose score is at most `max_score`, and those without a score (NaN)."""

    max_score: float = 0.9
    """Highest score of a response that is trained on."""

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        """
        Args:
            scores: [N], correctness, or the total reward if correctness is unknown.
            group: [N], group index, equal for the responses to one prompt.
        """
        return ~torch.gt(scores, self.max_score)
