"""Rankings as independent pairs."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.functional import logsigmoid

from rlmods.errors import UserError
from rlmods.ranking.pairs import is_better, pair_mean, pairwise_differences
from rlmods.types import CandidateFloats, CandidateInts, CandidateMask, PromptFloats


@dataclass(frozen=True)
class BradleyTerry:
    """Pairwise loss: -log sigmoid(s_w - s_l - margin), mean over all strict pairs of a ranking (K
    (K - 1) / 2 from K scores without ties).

    InstructGPT, arXiv:2203.02155, equation 1. All pairs of a prompt share one forward, which
    prevents overfitting to single responses. Ties contribute nothing."""

    margin: bool = False
    """Subtract the data's margin from the gap, so that clear preferences need a larger one (Llama
    2, arXiv:2307.09288, equation 2)."""

    def __call__(
        self,
        scores: CandidateFloats,
        rank: CandidateInts,
        present: CandidateMask,
        margin: PromptFloats | None,
    ) -> PromptFloats:
        """Loss of each prompt.

        Raises:
            UserError: `margin` is set and the data has no margins.
        """
        gap = pairwise_differences(scores, present)
        if self.margin:
            if margin is None:
                raise UserError(
                    "ranking.margin=true, but the data has no margins: type ranking.margin=false"
                )
            gap = gap - margin[:, None, None]
        return pair_mean(-logsigmoid(gap), is_better(rank, present))
