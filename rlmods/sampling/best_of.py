"""Training on the best responses to each prompt."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rlmods.needs import SamplingNeeds
from rlmods.settings.bounds import Count, bounded
from rlmods.types import RowFloats, RowInts, RowMask


@dataclass(frozen=True)
@bounded("sampling")
class BestOf:
    """Best-of-K rejection sampling: keep at most the k best responses of each group, among those
    that score at least `threshold`.

    RFT (arXiv:2308.01825) and Llama 2 (arXiv:2307.09288, section 3.2.3). A group without such a
    response is dropped. Of equal scores the earlier row is kept. NaN marks an unscored response,
    which is never kept."""

    k: Count = 1
    """Maximum number of responses kept in each group."""
    threshold: float = 0.5
    """Lowest score of a response that is kept."""

    needs: ClassVar[SamplingNeeds] = SamplingNeeds(selects_rows=True)

    def __call__(self, scores: RowFloats, group: RowInts) -> RowMask:
        row = torch.arange(len(scores), device=scores.device)
        better = (scores > scores[:, None]) | ((scores == scores[:, None]) & (row < row[:, None]))
        rank = (better & (group == group[:, None])).sum(1)
        return (scores >= self.threshold) & (rank < self.k)
