"""Rankings as independent pairs."""

from dataclasses import dataclass

from torch.nn.functional import logsigmoid

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
        """Return the loss of each prompt. `margin` is None if no prompt has one."""
        gap = pairwise_differences(scores, present)
        if self.margin and margin is not None:
            gap = gap - margin[:, None, None]
        return pair_mean(-logsigmoid(gap), is_better(rank, present))
