"""The advantage of GRPO."""

from dataclasses import dataclass
from typing import ClassVar

from rlmods.errors import check_bounds
from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, center_by_group, group_reduce
from rlmods.types import Credit, RowFloats, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class GroupNorm:
    """Group normalisation: A_i = (R_i - mean(R)) / (std(R) + eps) over the responses to one prompt,
    on every token of the response.

    DeepSeekMath (GRPO), arXiv:2402.03300, section 4.1.2. Groups with equal rewards, and groups of
    one, get exactly 0. With a KL in the reward, mean and standard deviation are computed
    without it (`needs.normalizes_rewards`)."""

    eps: float = 1e-6
    """Added to the standard deviation; above 0."""
    unbiased: bool = True
    """Divide the squared deviations by G - 1 instead of G."""

    needs: ClassVar[AdvantageNeeds] = AdvantageNeeds(group=True, normalizes_rewards=True)

    def __post_init__(self) -> None:
        check_bounds(self, "advantage", {"eps": (self.eps > 0, "above 0")})

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        advantages = normalize_by_group(rewards, mask, group, self.eps, self.unbiased)
        return Credit(broadcast_to_tokens(advantages, mask))


def normalize_by_group(
    rewards: TokenFloats, mask: TokenMask, group: RowInts, eps: float, unbiased: bool
) -> RowFloats:
    """Return (R_i - mean(R)) / (std(R) + eps) over the group of row i, whose R_i is the sum of its
    rewards; exactly 0 in groups of equal scores, and for a row without a true slot, which is left
    out of the moments."""
    centred, count = center_by_group(rewards, mask, group)
    variance = group_reduce(centred.square(), group, "sum") / (count - int(unbiased)).clamp(min=1)
    return centred / (variance.sqrt() + eps)
