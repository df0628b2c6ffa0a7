"""Learning rate schedule."""

import math
from dataclasses import dataclass
from typing import Literal

from rlmods.settings.bounds import Fraction, NonNegativeInt, bounded


@dataclass(frozen=True)
@bounded("schedule")
class Schedule:
    """Learning rate factor: linear warm-up, then constant or decaying to `final` at the last
    iteration."""

    warmup: NonNegativeInt = 0
    """Iterations of linear warm-up. The first one has a factor above 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the schedule after the warm-up."""
    final: Fraction = 0.0
    """Factor at the end of a decaying schedule, from 0 to 1."""

    def __call__(self, iteration: int, max_iterations: int) -> float:
        """Return the factor for the iteration that follows `iteration` completed ones."""
        if iteration < self.warmup:
            return (iteration + 1) / (self.warmup + 1)
        if self.decay == "constant":
            return 1.0
        progress = min(1.0, (iteration - self.warmup) / max(1, max_iterations - 1 - self.warmup))
        remaining = 1 - progress
        if self.decay == "cosine":
            remaining = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final + (1 - self.final) * remaining
