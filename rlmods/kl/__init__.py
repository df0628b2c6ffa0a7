"""Distance from the reference."""

from rlmods.kl.no_kl import NoKL
from rlmods.kl.penalty import Penalty

__all__ = ["NoKL", "Penalty"]
