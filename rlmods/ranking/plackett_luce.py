"""Rankings as sequences of choices."""

from dataclasses import dataclass

import torch

from rlmods.ops import masked_sum
from rlmods.ranking.pairs import is_better
from rlmods.types import CandidateFloats, CandidateInts, CandidateMask, PromptFloats


@dataclass(frozen=True)
class PlackettLuce:
    """Listwise loss: -sum_k log(exp(s_k) / sum of exp(s_j) over j = k and all ranked below k). The
    best is chosen first, then the next.

    Plackett 1975, "The Analysis of Permutations", and Luce 1959; equation 18 in DPO's appendix A.3
    (arXiv:2305.18290). Two candidates give Bradley-Terry. Ties contribute nothing: a tied candidate
    is compared only with the candidates ranked below it."""

    def __call__(
        self,
        scores: CandidateFloats,
        rank: CandidateInts,
        present: CandidateMask,
        margin: PromptFloats | None,
    ) -> PromptFloats:
        scores = torch.where(present, scores, 0.0)
        choices = is_better(rank, present) | torch.eye(
            rank.shape[1], dtype=torch.bool, device=rank.device
        )
        loss = torch.where(choices, scores[:, None, :], -torch.inf).logsumexp(2) - scores
        return masked_sum(loss, present)
