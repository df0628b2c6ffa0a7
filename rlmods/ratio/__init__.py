"""Ratio policies: importance ratios and advantages to the objective of an update, clipped or
not."""

from rlmods.ratio.cispo import CISPO
from rlmods.ratio.clipped import Clipped
from rlmods.ratio.dppo import DPPO
from rlmods.ratio.geometric_mean import GeometricMean
from rlmods.ratio.kl_penalty import KLPenalty
from rlmods.ratio.log_likelihood import LogLikelihood
from rlmods.ratio.soft import Soft
from rlmods.ratio.topr import TOPR
from rlmods.ratio.unclipped import Unclipped

__all__ = [
    "CISPO",
    "DPPO",
    "TOPR",
    "Clipped",
    "GeometricMean",
    "KLPenalty",
    "LogLikelihood",
    "Soft",
    "Unclipped",
]
