"""Train on the best answers to each prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class BestOf:
    """Keeps in each group the k best responses, at most, of those that score at least `threshold`; a group without any goes.

    Best-of-K rejection sampling, as in RFT (arXiv:2308.01825) and Llama 2 (arXiv:2307.09288, section 3.2.3). Of equal scores the earlier
    row is kept. NaN marks an unscored response, which is never kept."""

    k: int = 1
    """Responses kept of each group, at most."""
    threshold: float = 0.5
    """Least score of a response that is kept."""

    def __post_init__(self) -> None:
        if not self.k >= 1:
            raise ValueError(f"BestOf: k must be at least 1, got {self.k}")

    def __call__(self, scores: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
        row = torch.arange(len(scores), device=scores.device)
        better = (scores > scores[:, None]) | ((scores == scores[:, None]) & (row < row[:, None]))
        rank = (better & (group == group[:, None])).sum(1)
        return (scores >= self.threshold) & (rank < self.k)
