"""KL divergence from the reference policy."""

from rlmods.kl.controlled import Adaptive, Ramp
from rlmods.kl.no_kl import NoKL
from rlmods.kl.penalty import Penalty

__all__ = ["Adaptive", "NoKL", "Penalty", "Ramp"]
