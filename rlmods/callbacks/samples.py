"""Sample log: every response to a file, some of them to the terminal and to the loggers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import rich
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich.panel import Panel
from rich.text import Text

from rlmods.callbacks.hooks import Metrics, Row, Rows, as_learner
from rlmods.logger.samples import TableLogger, table
from rlmods.run import atomic_write, dumps
from rlmods.run.files import printable

if TYPE_CHECKING:
    from rlmods.algo import Learner

TEXT_COLUMNS = ("prompt", "response", "answer")
"""Columns printed as separate paragraphs; other short columns go on one line below."""


class Samples(Callback):
    """Write `iteration_000012.jsonl` (and `validation_000012.jsonl`), one row per response, print
    some of the rows, and send tables of them to the loggers that keep tables (`TableLogger`)."""

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
        self.path = Path(path)
        self.every = every
        self.shown = shown
        self.print_every = print_every
        self.table_every = table_every
        self.table_rows = table_rows

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete files of iterations after the one that training resumes from: they are
        repeated."""
        for path in self.path.glob("*.jsonl"):
            match = re.fullmatch(r"(?:iteration|validation)_(\d+)", path.stem)
            if match and int(match[1]) > as_learner(pl_module).iteration:
                path.unlink()

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        """Write, print and send a table; a collective, as each rank has its own rows."""
        iteration = learner.iteration
        is_written = _is_due(iteration, self.every)
        is_printed = _is_due(iteration, self.print_every)
        is_sent = _is_due(iteration, self.table_every)
        if not (is_written or is_printed or is_sent):
            return
        rows = _gather_rows(learner.samples, trainer)
        if is_written:
            self._write("iteration", iteration, rows)
        if is_printed and self.shown:
            step = max(1, len(rows) // self.shown)
            for row in rows[::step][: self.shown]:
                rich.get_console().print(panel(row, f"iteration {iteration}"))
        if is_sent:
            self._send(trainer, "iteration", iteration, rows)

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        """Write and send a table; a collective, as each rank has its own rows."""
        if not (self.every or self.table_every):
            return
        rows = _gather_rows(rows, trainer)
        if self.every:
            self._write("validation", learner.iteration, rows)
        if self.table_every:
            self._send(trainer, "validation", learner.iteration, rows)

    def _write(self, kind: str, iteration: int, rows: Rows) -> None:
        if rows:  # offline algorithms and other ranks than the first have none
            path = self.path / f"{kind}_{iteration:06d}.jsonl"
            atomic_write(path, "".join(dumps(row) + "\n" for row in rows))

    def _send(self, trainer: Trainer, name: str, iteration: int, rows: Rows) -> None:
        if not rows:
            return
        columns, cells = table(rows[: self.table_rows])
        for logger in trainer.loggers:
            if isinstance(logger, TableLogger):
                logger.log_table(f"samples/{name}", columns, cells, step=iteration)


def panel(row: Row, title: str) -> Panel:
    """Format a row for the terminal. Model output is never parsed as rich markup, and its control
    characters are shown as escapes."""
    lines = []
    fields = []
    for name, value in row.items():
        if name not in TEXT_COLUMNS and isinstance(value, int | float | str):
            fields.append(f"{name} {_format(value)}")
    for name in TEXT_COLUMNS:
        if row.get(name) is not None:
            text = printable(str(row[name]).strip())
            style = "bold" if name == "response" else ""
            lines.append(Text.assemble((f"{name:9}", "dim"), (text, style)))
    return Panel(
        Text("\n").join(lines),
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
    gathered: list[Rows | None] | None = None
    if trainer.is_global_zero:
        gathered = [None] * trainer.world_size
    torch.distributed.gather_object(rows, gathered)
    return [row for part in gathered or [] for row in part or ()]
