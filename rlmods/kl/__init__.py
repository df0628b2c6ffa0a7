"""KL divergence from the reference policy."""

from rlmods.kl.controlled import Adaptive, Ramp
from rlmods.kl.full import Full
from rlmods.kl.no_kl import NoKL
from rlmods.kl.penalty import Penalty

__all__ = ["Adaptive", "Full", "NoKL", "Penalty", "Ramp"]
