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
        for name in ("keep", "keep_every"):
            if getattr(self, name) < 0:
                raise UserError(
                    f"callbacks.checkpoint.{name}={getattr(self, name)}: must be 0 or more"
                )
        if self.mode not in ("max", "min"):
            raise UserError(f"callbacks.checkpoint.best_mode={self.mode}: one of max, min")

    def is_permanent(self, iteration: int) -> bool:
        """Return True if a checkpoint of this iteration is kept permanently."""
        return self.keep_every > 0 and iteration % self.keep_every == 0

    def best_iteration(self, values: Values) -> int | None:
        """Return the iteration with the best value, the first of equal ones; None without
        values."""
        sign = 1 if self.mode == "max" else -1
        known = [
            (sign * value, -iteration)
            for iteration, value in values.items()
            if not math.isnan(value)
        ]
        return -max(known)[1] if known else None

    def select(self, iterations: Iterable[int], values: Values) -> set[int]:
        """Return those of `iterations` whose checkpoints are kept."""
        existing = sorted(iterations)
        newest = existing[-self.keep :] if self.keep else existing
        best = self.best_iteration({i: value for i, value in values.items() if i in existing})
        return {*newest, *filter(self.is_permanent, existing), *(() if best is None else (best,))}

    def read_values(self, path: Path, iterations: Iterable[int]) -> dict[int, float]:
        """Read the values of these iterations from `best.json`; {} if it is broken or holds another
        metric."""
        try:
            saved = json.loads(path.read_text())
            values = (
                {int(i): float(value) for i, value in saved["values"].items()}
                if saved["metric"] == self.best
                else {}
            )
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
