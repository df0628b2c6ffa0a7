"""Selection of the checkpoints to keep."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlmods.errors import UserError
from rlmods.run import atomic_write, dumps

Values = Mapping[int, float]
"""Validation metric of existing checkpoints, by iteration."""


@dataclass(frozen=True)
class Retention:
    """Keep the newest checkpoints, every N-th permanently, and the best.

    Raises:
        UserError: a negative count, an unknown mode.
    """

    keep: int = 2
    """Number of newest checkpoints to keep; 0 keeps all."""
    keep_every: int = 0
    """Keep every checkpoint at a multiple of this many iterations permanently; 0: none."""
    best: str | None = None
    """Validation metric whose best checkpoint is kept too. None: none."""
    mode: Literal["max", "min"] = "max"
    """Direction in which the metric is better."""

    def __post_init__(self) -> None:
        for name, count in (("keep", self.keep), ("keep_every", self.keep_every)):
            if count < 0:
                raise UserError(f"callbacks.checkpoint.{name}={count}: must be 0 or more")
        if self.mode not in ("max", "min"):
            raise UserError(f"callbacks.checkpoint.best_mode={self.mode}: one of max, min")

    def is_permanent(self, iteration: int) -> bool:
        """Return True if a checkpoint of this iteration is kept permanently."""
        return self.keep_every > 0 and iteration % self.keep_every == 0

    def best_iteration(self, values: Values) -> int | None:
        """Return the iteration with the best value, the first of equal ones; None without
        values."""
        known = sorted(i for i, value in values.items() if not math.isnan(value))
        if not known:
            return None
        choose = max if self.mode == "max" else min
        return choose(known, key=lambda iteration: values[iteration])

    def select(self, iterations: Iterable[int], values: Values) -> set[int]:
        """Return the iterations whose checkpoints are kept."""
        existing = sorted(iterations)
        kept = set(existing[-self.keep :] if self.keep else existing)
        kept.update(filter(self.is_permanent, existing))
        best = self.best_iteration({i: value for i, value in values.items() if i in existing})
        if best is not None:
            kept.add(best)
        return kept

    def read_values(self, path: Path, iterations: Iterable[int]) -> dict[int, float]:
        """Read the values of these iterations from `best.json`; {} if it is broken or holds another
        metric."""
        try:
            saved = json.loads(path.read_text())
            if saved["metric"] != self.best:
                return {}
            values = {int(i): float(value) for i, value in saved["values"].items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return {}
        return {i: values[i] for i in iterations if i in values}

    def write_values(self, path: Path, values: Values, name: str) -> None:
        """Write `best.json`: the best checkpoint, its value, and the values of the others."""
        best = self.best_iteration(values)
        if best is not None:
            content = {
                "metric": self.best,
                "mode": self.mode,
                "checkpoint": name.format(best),
                "value": values[best],
                "values": values,
            }
            atomic_write(path, dumps(content, indent=2) + "\n")
