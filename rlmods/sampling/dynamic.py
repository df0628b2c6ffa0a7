"""Training on the groups whose scores differ."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rlmods.needs import SamplingNeeds
from rlmods.ops import constant_group, group_reduce
from rlmods.settings.bounds import check_bounds
from rlmods.types import RowFloats, RowInts, RowMask


@dataclass(frozen=True)
class Dynamic:
    """Dynamic sampling: keep a whole group if its scores are not all equal, 0 < #correct < G.
    DAPO, arXiv:2503.14476, equation 11.

    A group of equal scores has advantage 0 everywhere: it costs time and dilutes the mean. NaN
    marks an unscored response, which is ignored here and kept or dropped with its group. `low` and
    `high` also bound the group's mean score, to select prompts by difficulty."""

    low: float | None = None
    """Lowest mean score of a group that is kept. None: no bound."""
    high: float | None = None
    """Highest mean score of a group that is kept. None: no bound."""

    needs: ClassVar[SamplingNeeds] = SamplingNeeds(group=True)

    def __post_init__(self) -> None:
        ordered = self.low is None or self.high is None or self.low <= self.high
        check_bounds(self, "sampling", {"low": (ordered, f"at most sampling.high={self.high}")})

    def __call__(self, scores: RowFloats, group: RowInts) -> RowMask:
        scored = ~scores.isnan()
        total = group_reduce(torch.where(scored, scores, 0.0), group, "sum")
        mean = total / group_reduce(scored.to(scores.dtype), group, "sum").clamp(min=1)
        low = -torch.inf if self.low is None else self.low
        high = torch.inf if self.high is None else self.high
        return ~constant_group(scores, scored, group) & (mean >= low) & (mean <= high)
