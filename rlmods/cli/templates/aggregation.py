"""Custom loss aggregation: `python train.py aggregation=name`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlmods.types import Totals


@dataclass(frozen=True)
class Name:
    """Mean over responses of sum_t x_t / length^power. With `power` 1 every response has the same
    weight, with 0 every token."""

    power: float = 0.5
    """Exponent of the number of tokens."""

    def __call__(self, x: Tensor, mask: Tensor, totals: Totals) -> Tensor:
        """
        Args:
            x: [N, T], objective of each token.
            mask: [N, T], True on response tokens.
            totals: tokens and responses of the whole optimizer step, over all microbatches and
                ranks. Divide by them, not by the size of `x`.
        """
        length = mask.sum(1).clamp(min=1)
        of_response = torch.where(mask, x, 0.0).sum(1) / length**self.power
        return of_response.sum() / totals.sequences
