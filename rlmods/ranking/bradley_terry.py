"""Rankings as independent pairs."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlmods.ranking.pairs import better, gaps, pair_mean
from rlmods.types import UserError


@dataclass(frozen=True)
class BradleyTerry:
    """-log sigmoid(s_w - s_l - margin), mean over all strict pairs of a ranking: K (K - 1) / 2 of them from K scores without ties.

    InstructGPT, arXiv:2203.02155, equation 1. All pairs of a prompt share one forward, so that none of its responses is learned by heart.
    Ties contribute nothing."""

    margin: bool = False
    """Take the data's margin off the gap: clear cases must be told further apart (Llama 2, arXiv:2307.09288, equation 2)."""

    def __call__(
        self,
        scores: Float[Tensor, "P K"],
        rank: Int[Tensor, "P K"],
        present: Bool[Tensor, "P K"],
        margin: Float[Tensor, " P"] | None,
    ) -> Float[Tensor, " P"]:
        """Loss of each prompt.

        Raises:
            UserError: a margin is asked for, and the data has none.
        """
        gap = gaps(scores, present)
        if self.margin:
            if margin is None:
                raise UserError("ranking.margin=true, and the data has no margin: type ranking.margin=false")
            gap = gap - margin[:, None, None]
        return pair_mean(-logsigmoid(gap), better(rank, present))
