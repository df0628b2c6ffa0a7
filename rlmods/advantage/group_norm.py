"""The advantage of GRPO."""

from dataclasses import dataclass
from typing import Literal

from rlmods.advantage.batch_mean import batch_moments
from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, center_by_group, group_reduce, masked_sum
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Credit, RowFloats, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class GroupNorm:
    """Group normalisation: A_i = (R_i - mean(R)) / (std(R) + eps) over the responses to one prompt,
    on every token of the response.

    DeepSeekMath (GRPO), arXiv:2402.03300, section 4.1.2. With `scale` the divisor is the standard
    deviation of all responses that are sampled at once (arXiv:2508.08221, section 4.2; the
    scale_rewards of TRL), or 1 (advantage=group_mean). Groups with equal rewards, and groups of
    one, get exactly 0. With a KL in the reward, mean and standard deviation are computed without it
    (`needs.normalizes_rewards`)."""

    eps: Positive = 1e-6
    """Added to the standard deviation."""
    unbiased: bool = True
    """Divide the squared deviations by G - 1 instead of G. Only for scale=group."""
    scale: Literal["group", "batch", "none"] = "group"
    """Responses whose standard deviation divides: of the prompt, of all prompts and ranks, or none
    (divide by 1)."""

    @property
    def needs(self) -> AdvantageNeeds:
        return AdvantageNeeds(group=True, normalizes_rewards=self.scale != "none")

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        if self.scale == "group":
            advantages = normalize_by_group(rewards, mask, group, self.eps, self.unbiased)
        else:
            advantages, _ = center_by_group(rewards, mask, group)
        if self.scale == "batch":
            _, std = batch_moments(masked_sum(rewards, mask), mask.any(1))
            advantages = advantages / (std + self.eps)
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
