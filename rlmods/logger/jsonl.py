"""Logger that writes `metrics.jsonl`."""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

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
        """Delete rows after `iteration` and broken lines, such as the last one of a process that
        was killed, and continue from the last `wall_s`.

        Raises:
            UserError: the file cannot be read or written.
        """
        lines = read_lines(self.path)
        kept = []
        wall_s = 0.0
        for line in lines:
            row = parse_row(line)
            number = None if row is None else row.get("iteration")
            if row is not None and isinstance(number, int) and number <= iteration:
                kept.append(line + b"\n")
                wall_s = row["wall_s"] or 0.0
        content = b"".join(kept)
        if content != b"\n".join(lines):
            atomic_write(self.path, content)
        self._start = time.monotonic() - wall_s

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
