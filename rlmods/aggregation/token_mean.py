"""Mean over all tokens."""

from dataclasses import dataclass

from rlmods.ops import masked_sum
from rlmods.types import Scalar, TokenFloats, TokenMask, Totals


@dataclass(frozen=True)
class TokenMean:
    """Mean over tokens: sum(x) / tokens of the optimizer step. DAPO, arXiv:2503.14476, equation 12.

    Every token has the same weight, so a long response has more than a short one."""

    def __call__(self, x: TokenFloats, mask: TokenMask, totals: Totals) -> Scalar:
        return masked_sum(x, mask).sum() / totals.tokens
