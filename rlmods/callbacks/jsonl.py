"""`metrics.jsonl`: the log that is always written, and that reports are made from."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from rlmods.run import atomic_write, dumps, writing


class JsonlLogger(Logger):
    """Appends one JSON object a call: `iteration`, `optimizer_step`, `wall_s`, then the metrics by name. NaN and infinities are null."""

    def __init__(self, path: str | Path, after: int | None = None) -> None:
        """Goes on after iteration `after` (`RunDir.iteration`), dropping what an earlier process logged beyond it; None drops nothing."""
        super().__init__()
        self.path = Path(path)
        self._start = time.monotonic()
        self.truncate(sys.maxsize if after is None else after)

    @rank_zero_only
    def truncate(self, iteration: int) -> None:
        """Drops the lines after `iteration` (and a last line that was cut off), and continues their clock."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        rows = [(row, line) for line in lines if (row := _parse(line)) is not None and row["iteration"] <= iteration]
        if len(rows) < len(lines):
            atomic_write(self.path, "".join(f"{line}\n" for _, line in rows))
        self._start = time.monotonic() - (rows[-1][0]["wall_s"] or 0.0 if rows else 0.0)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """`step` is the iteration. `optimizer_step` and `wall_s` may be among the metrics; the clock runs by itself without.

        Raises:
            UserError: the file cannot be written.
        """
        rest = dict(metrics)
        row = {
            "iteration": step,
            "optimizer_step": rest.pop("optimizer_step", None),
            "wall_s": rest.pop("wall_s", round(time.monotonic() - self._start, 3)),
        }
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:  # one write a line, closed at once: a reader at any time sees whole lines
                file.write(dumps(row | {key: rest[key] for key in sorted(rest)}) + "\n")

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: `config.yaml` holds them."""

    @property
    def name(self) -> str:
        return "jsonl"

    @property
    def version(self) -> str:
        return ""


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("iteration"), int) else None
