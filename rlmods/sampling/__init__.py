"""Which groups are worth training on."""

from rlmods.sampling.dynamic import Dynamic
from rlmods.sampling.fixed import Fixed

__all__ = ["Dynamic", "Fixed"]
