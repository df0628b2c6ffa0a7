"""Selection of the responses to train on."""

from rlmods.sampling.best_of import BestOf
from rlmods.sampling.dynamic import Dynamic
from rlmods.sampling.fixed import Fixed

__all__ = ["BestOf", "Dynamic", "Fixed"]
