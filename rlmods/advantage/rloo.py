"""The advantage of REINFORCE leave-one-out."""

from dataclasses import dataclass

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, center_by_group
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class RLOO:
    """Leave-one-out baseline: A_i = R_i - mean(R_j, j != i) = G / (G - 1) * (R_i - mean(R)) over
    the G responses to one prompt.

    Ahmadian et al. 2024, arXiv:2402.14740, section 2: a baseline that does not contain R_i keeps
    the gradient unbiased."""

    needs = AdvantageNeeds(group=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        centred, count = center_by_group(rewards, mask, group)
        return Credit(broadcast_to_tokens(centred * count / (count - 1).clamp(min=1), mask))
