"""Sample log: every response to a file, some of them to the terminal and to the loggers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich
import torch
from lightning import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich.panel import Panel
from rich.text import Text

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.logger.samples import SampleLogger
from rlmods.run import atomic_write, dumps
from rlmods.run.printable import printable

TEXT_COLUMNS = ("prompt", "response", "answer")
"""Columns printed as separate paragraphs; other short columns go on one line below."""


class Samples(Callback):
    """Write `iteration_000012.jsonl` (and `validation_000012.jsonl`), one row per response, print
    some of the rows, and send tables of them to the loggers that keep tables (`SampleLogger`)."""

    def __init__(
        self,
        path: str | Path,
        every: int = 1,
        shown: int = 2,
        print_every: int = 10,
        table_every: int = 10,
        table_rows: int = 16,
    ) -> None:
        """
        Args:
            path: folder of the files.
            every: iterations between files; 0 writes none.
            shown: number of responses to print, evenly spaced in the iteration.
            print_every: iterations between prints; 0 prints none.
            table_every: iterations between tables for the loggers, and 0: none. Each validation has
            one too.
            table_rows: number of rows of a table: the first ones, so that the responses to a prompt
            stand together.
        """
        self.path, self.every, self.shown, self.print_every = Path(path), every, shown, print_every
        self.table_every, self.table_rows = table_every, table_rows

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        """Delete files of iterations after the one that training resumes from: they are
        repeated."""
        for path in self.path.glob("*.jsonl"):
            if (match := re.fullmatch(r"(?:iteration|validation)_(\d+)", path.stem)) and int(
                match[1]
            ) > learner.iteration:
                path.unlink()

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        """Write, print and send a table; a collective, as each rank has its own rows."""
        writes, prints, tables = (
            _is_due(learner.iteration, every)
            for every in (self.every, self.print_every, self.table_every)
        )
        rows = _gather_rows(learner.samples, trainer) if writes or prints or tables else []
        if trainer.is_global_zero and writes:
            self._write("iteration", learner.iteration, rows)
        if trainer.is_global_zero and prints and self.shown:
            for row in rows[:: max(1, len(rows) // self.shown)][: self.shown]:
                rich.get_console().print(panel(row, f"iteration {learner.iteration}"))
        if tables:
            self._log_table(trainer, "iteration", learner.iteration, rows)

    def on_validation_metrics(
        self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows
    ) -> None:
        """Write and send a table; a collective, as each rank has its own rows."""
        rows = _gather_rows(rows, trainer) if self.every or self.table_every else []
        if trainer.is_global_zero and self.every:
            self._write("validation", learner.iteration, rows)
        if self.table_every:
            self._log_table(trainer, "validation", learner.iteration, rows)

    def _write(self, kind: str, iteration: int, rows: Rows) -> None:
        if rows:  # offline algorithms have none
            atomic_write(
                self.path / f"{kind}_{iteration:06d}.jsonl",
                "".join(dumps(row) + "\n" for row in rows),
            )

    def _log_table(self, trainer: Trainer, name: str, iteration: int, rows: Rows) -> None:
        for logger in trainer.loggers if trainer.is_global_zero and rows else ():
            if isinstance(logger, SampleLogger):
                logger.log_samples(name, rows[: self.table_rows], iteration)


def panel(row: Mapping[str, Any], title: str) -> Panel:
    """Format a row for the terminal. Model output is never parsed as rich markup, and its control
    characters are shown as escapes."""
    texts = [
        (name, printable(str(row[name]).strip()))
        for name in TEXT_COLUMNS
        if row.get(name) is not None
    ]
    fields = [
        f"{key} {_format(value)}"
        for key, value in row.items()
        if key not in TEXT_COLUMNS and isinstance(value, int | float | str)
    ]
    body = Text("\n").join(
        Text.assemble((f"{name:9}", "dim"), (text, "bold" if name == "response" else ""))
        for name, text in texts
    )
    return Panel(
        body,
        title=title,
        subtitle=Text(printable("  ".join(fields)), style="dim"),
        title_align="left",
        subtitle_align="left",
    )


def _format(value: float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:40]


def _is_due(iteration: int, every: int) -> bool:
    return every > 0 and iteration % every == 0


def _gather_rows(rows: Rows, trainer: Trainer) -> Rows:
    """Gather the rows of all ranks on the first rank; the others get none."""
    if trainer.world_size == 1:
        return rows
    gathered: list[Any] | None = [None] * trainer.world_size if trainer.is_global_zero else None
    torch.distributed.gather_object(rows, gathered)
    return [row for part in gathered or [] for row in part]
