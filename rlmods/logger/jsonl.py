"""Logger that writes `metrics.jsonl`."""

from __future__ import annotations

import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from rlmods.errors import counted
from rlmods.run.files import atomic_write, dumps, parse_row, read_lines, wrap_write_errors


class JsonlLogger(Logger):
    """Append one JSON object per call: `iteration`, `optimizer_step`, `wall_s`, then the metrics by
    name. NaN and infinities are null."""

    def __init__(self, path: str | Path, after: int | None = None) -> None:
        """Continue after iteration `after` (`RunDir.iteration`): later rows of an earlier process
        are deleted. None keeps all."""
        super().__init__()
        self.path = Path(path)
        self._start = time.monotonic()
        self.truncate(sys.maxsize if after is None else after)

    @rank_zero_only
    def truncate(self, iteration: int) -> None:
        """Delete rows after `iteration` (and an incomplete last line), and continue from the last
        `wall_s`."""
        rows = truncate_rows(self.path, iteration)
        self._start = time.monotonic() - (rows[-1]["wall_s"] or 0.0 if rows else 0.0)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append a row; `step` is the iteration. `metrics` may include `optimizer_step`, and
        `wall_s` to override the clock.

        Raises:
            UserError: the file cannot be written.
        """
        rest = dict(metrics)
        row = {
            "iteration": step,
            "optimizer_step": rest.pop("optimizer_step", None),
            "wall_s": rest.pop("wall_s", round(time.monotonic() - self._start, 3)),
        }
        with wrap_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # one write per line, closed at once: readers always see complete lines
            with self.path.open("a") as file:
                file.write(dumps(row | {key: rest[key] for key in sorted(rest)}) + "\n")

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: object, **kwargs: object
    ) -> None:
        """Do nothing: hyperparameters are in `config.yaml`."""

    @property
    def name(self) -> str:
        return "jsonl"

    @property
    def version(self) -> str:
        return ""


def truncate_rows(path: Path, iteration: int) -> list[dict[str, Any]]:
    """Delete rows after `iteration`, rows without one and broken lines from a file of per-iteration
    rows; return the rows kept. Warns of broken lines, except for an incomplete last one, which a
    crash leaves.

    Raises:
        UserError: the file cannot be read or written.
    """
    lines = read_lines(path)
    kept_rows = []
    kept_lines = []
    num_broken = 0
    for number, line in enumerate(lines, 1):
        row = parse_row(line)
        if row is None:
            num_broken += bool(line.strip()) and number < len(lines)
        elif isinstance(row.get("iteration"), int) and row["iteration"] <= iteration:
            kept_rows.append(row)
            kept_lines.append(line + b"\n")
    if num_broken:
        warnings.warn(
            f"{path}: deleted {counted(num_broken, 'broken line')} in the middle of the file",
            stacklevel=2,
        )
    content = b"".join(kept_lines)
    if content != b"\n".join(lines):
        atomic_write(path, content)
    return kept_rows
