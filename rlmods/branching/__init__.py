"""Branching of responses over turns."""

from rlmods.branching.entropy import Entropy
from rlmods.branching.none import NoBranching

__all__ = ["Entropy", "NoBranching"]
