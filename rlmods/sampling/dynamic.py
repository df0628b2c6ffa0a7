"""Training on the groups whose scores differ."""

from dataclasses import dataclass
from typing import ClassVar

from rlmods.needs import SamplingNeeds
from rlmods.ops import constant_group
from rlmods.types import RowFloats, RowInts, RowMask


@dataclass(frozen=True)
class Dynamic:
    """Dynamic sampling: keep a whole group if its scores are not all equal, 0 < #correct < G.
    DAPO, arXiv:2503.14476, equation 11.

    A group of equal scores has advantage 0 everywhere: it costs time and dilutes the mean. NaN
    marks an unscored response, which is ignored here and kept or dropped with its group."""

    needs: ClassVar[SamplingNeeds] = SamplingNeeds(group=True)

    def __call__(self, scores: RowFloats, group: RowInts) -> RowMask:
        return ~constant_group(scores, ~scores.isnan(), group)
