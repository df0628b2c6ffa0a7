"""Selection of the sampled tokens that are trained."""

from rlmods.tokens.all_tokens import AllTokens
from rlmods.tokens.covariance import ClipCov, KLCov
from rlmods.tokens.entropy import HighEntropy
from rlmods.tokens.off_policy import OffPolicy

__all__ = ["AllTokens", "ClipCov", "HighEntropy", "KLCov", "OffPolicy"]
