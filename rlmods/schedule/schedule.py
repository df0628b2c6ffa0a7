"""The learning rate over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """Factor on the learning rate: linear warm-up, then constant or decaying to `final` at the last iteration."""

    warmup: int = 0
    """Iterations of linear warm-up; the first one already moves."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """What follows."""
    final: float = 0.0
    """Factor that a decaying schedule ends with."""

    def __post_init__(self) -> None:
        if not isinstance(self.warmup, int) or self.warmup < 0:
            raise ValueError(f"schedule.warmup={self.warmup}: must be a whole number, 0 or more")
        if self.decay not in ("constant", "linear", "cosine"):
            raise ValueError(f"schedule.decay={self.decay}: must be constant, linear or cosine")

    def __call__(self, iteration: int, max_iterations: int) -> float:
        """Factor for the iteration that starts after `iteration` completed ones."""
        if iteration < self.warmup:
            return (iteration + 1) / (self.warmup + 1)
        if self.decay == "constant":
            return 1.0
        progress = min(1.0, (iteration - self.warmup) / max(1, max_iterations - 1 - self.warmup))
        share = 1 - progress if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.final + (1 - self.final) * share
