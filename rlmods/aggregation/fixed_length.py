"""Sum of token losses over a constant response length."""

from dataclasses import dataclass

from rlmods.ops import masked_sum
from rlmods.settings.bounds import Count, bounded
from rlmods.types import Scalar, TokenFloats, TokenMask, Totals


@dataclass(frozen=True)
@bounded("aggregation")
class FixedLength:
    """Sum over a constant length: sum(x) / (responses of the optimizer step * length). Dr. GRPO,
    arXiv:2503.20783, section 3.2.

    Every token has the same weight, whatever the response lengths. `length` is a constant and not
    the batch width, so that padding does not change the loss."""

    length: Count
    """Number of tokens, usually the maximum response length, over all turns."""

    def __call__(self, x: TokenFloats, mask: TokenMask, totals: Totals) -> Scalar:
        return masked_sum(x, mask).sum() / (totals.sequences * self.length)
