"""Mean over responses of the mean over tokens."""

from dataclasses import dataclass

from rlmods.ops import masked_mean
from rlmods.types import Scalar, TokenFloats, TokenMask, Totals


@dataclass(frozen=True)
class SequenceMean:
    """Mean over responses of the token mean: sum_i mean_t(x_it) / responses of the optimizer step.
    GRPO, arXiv:2402.03300, equation 3.

    Every response has the same weight, so a token of a long response has less."""

    def __call__(self, x: TokenFloats, mask: TokenMask, totals: Totals) -> Scalar:
        return masked_mean(x, mask).sum() / totals.sequences
