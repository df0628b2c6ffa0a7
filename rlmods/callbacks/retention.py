"""Which checkpoints stay."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlmods.run import atomic_write, dumps
from rlmods.types import UserError

Values = Mapping[int, float]
"""The metric by iteration, of checkpoints that are there."""


@dataclass(frozen=True)
class Retention:
    """The newest, every so manieth for ever, and the best.

    Raises:
        UserError: a negative count, an unknown mode.
    """

    keep: int = 2
    """The newest; 0 keeps all."""
    keep_every: int = 0
    """Iterations between those that stay for ever; 0: none does."""
    best: str | None = None
    """A validation metric: the checkpoint in which it is best stays too. None: none does."""
    mode: Literal["max", "min"] = "max"
    """What is best."""

    def __post_init__(self) -> None:
        for name in ("keep", "keep_every"):
            if getattr(self, name) < 0:
                raise UserError(f"callbacks.checkpoint.{name}={getattr(self, name)}: must be 0 or more")
        if self.mode not in ("max", "min"):
            raise UserError(f"callbacks.checkpoint.best_mode={self.mode}: one of max, min")

    def due(self, iteration: int) -> bool:
        """Whether it would stay for ever."""
        return self.keep_every > 0 and iteration % self.keep_every == 0

    def best_of(self, values: Values) -> int | None:
        """The iteration; of equal ones the first."""
        sign = 1 if self.mode == "max" else -1
        known = [(sign * value, -iteration) for iteration, value in values.items() if not math.isnan(value)]
        return -max(known)[1] if known else None

    def kept(self, iterations: Iterable[int], values: Values) -> set[int]:
        """Those of `iterations` that stay."""
        there = sorted(iterations)
        newest = there[-self.keep :] if self.keep else there
        best = self.best_of({i: value for i, value in values.items() if i in there})
        return {*newest, *filter(self.due, there), *(() if best is None else (best,))}

    def read(self, path: Path, iterations: Iterable[int]) -> dict[int, float]:
        """What `write` left there, of these iterations; nothing of another metric, or where the file is broken."""
        try:
            saved = json.loads(path.read_text())
            values = {int(i): float(value) for i, value in saved["values"].items()} if saved["metric"] == self.best else {}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return {}
        return {i: values[i] for i in iterations if i in values}

    def write(self, path: Path, values: Values, name: str) -> None:
        """`best.json`: which checkpoint is best, its value, and those of the others."""
        best = self.best_of(values)
        if best is not None:
            facts = {"metric": self.best, "mode": self.mode, "checkpoint": name.format(best), "value": values[best], "values": values}
            atomic_write(path, dumps(facts, indent=2) + "\n")
