"""Train on the groups that teach something."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.ops import constant_group, group_reduce


@dataclass(frozen=True)
class Dynamic:
    """Keeps a whole group iff its scores are not all equal: 0 < #correct < G. DAPO, arXiv:2503.14476, equation 11.

    A group without any difference has advantage 0 everywhere: it costs time and dilutes the mean. NaN marks an unscored response: it does
    not decide, and stays or goes with its group. `low` and `high` also bound the group's mean score, to pick prompts by difficulty."""

    low: float | None = None
    """Least mean score of a group that is kept, or None."""
    high: float | None = None
    """Greatest mean score of a group that is kept, or None."""

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"Dynamic: low must be at most high, got {self.low} and {self.high}")

    def __call__(self, scores: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
        scored = ~scores.isnan()
        total = group_reduce(torch.where(scored, scores, 0.0), group, "sum")
        mean = total / group_reduce(scored.to(scores.dtype), group, "sum").clamp(min=1)
        low, high = -torch.inf if self.low is None else self.low, torch.inf if self.high is None else self.high
        return ~constant_group(scores, scored, group) & (mean >= low) & (mean <= high)
