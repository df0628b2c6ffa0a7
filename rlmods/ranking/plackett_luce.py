"""Rankings as a sequence of choices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.ops import masked_sum
from rlmods.ranking.pairs import better


@dataclass(frozen=True)
class PlackettLuce:
    """-sum_k log(exp(s_k) / sum of exp(s_j) over j = k and all ranked below k): the best is chosen first, then the best of the rest.

    Plackett 1975, "The Analysis of Permutations", and Luce 1959; DPO's appendix A.3 (arXiv:2305.18290) writes it as equation 18. Two
    candidates give Bradley-Terry. Ties contribute nothing: each tied candidate is chosen from itself and what is worse than both."""

    def __call__(
        self,
        scores: Float[Tensor, "P K"],
        rank: Int[Tensor, "P K"],
        present: Bool[Tensor, "P K"],
        margin: Float[Tensor, " P"] | None,
    ) -> Float[Tensor, " P"]:
        scores = torch.where(present, scores, 0.0)
        among = better(rank, present) | torch.eye(rank.shape[1], dtype=torch.bool, device=rank.device)
        choice = torch.where(among, scores[:, None, :], -torch.inf).logsumexp(2) - scores
        return masked_sum(choice, present)
