"""Sample log: every response to a file, some of them to the terminal and to the loggers."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import rich
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich.text import Text

from rlmods.callbacks.hooks import Metrics, Row, Rows, as_learner, is_due
from rlmods.run.files import atomic_write, dumps, message_text, printable

if TYPE_CHECKING:
    from rlmods.algo import Learner

TEXT_COLUMNS = ("prompt", "response", "answer")
"""Columns printed as separate paragraphs; other short columns go on one line below."""
FIRST = ("prompt", "response", "answer", "reward", "advantage")
"""Columns of a table that come first, if the rows have them."""
HANGING = "\n" + 11 * " "
"""Newline in a text that begins behind the name of its column."""
MAX_CHARS = 10_000
"""Longer texts are cut."""

Cell = str | float | int | bool | None


@runtime_checkable
class TableLogger(Protocol):
    """Logger that keeps tables, such as Lightning's WandbLogger."""

    def log_table(
        self, key: str, columns: list[str], data: list[list[Any]], *, step: int | None
    ) -> None:
        """Log a table under a name."""


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
        is_written = is_due(iteration, self.every)
        is_printed = is_due(iteration, self.print_every) and self.shown > 0
        is_sent = is_due(iteration, self.table_every)
        if not (is_written or is_printed or is_sent):
            return
        rows = _gather_rows(learner.samples, trainer)
        self._log(trainer, "iteration", iteration, rows, is_written, is_sent)
        if is_printed:
            step = max(1, len(rows) // self.shown)
            for row in rows[::step][: self.shown]:
                text = sample_text(row, f"a response of iteration {iteration}")
                rich.get_console().print(text, soft_wrap=True)

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        """Write and send a table; a collective, as each rank has its own rows."""
        if self.every or self.table_every:
            rows = _gather_rows(rows, trainer)
            is_written = self.every > 0
            is_sent = self.table_every > 0
            self._log(trainer, "validation", learner.iteration, rows, is_written, is_sent)

    def _log(
        self,
        trainer: Trainer,
        kind: str,
        iteration: int,
        rows: Rows,
        is_written: bool,
        is_sent: bool,
    ) -> None:
        if not rows:  # offline algorithms and other ranks than the first have none
            return
        if is_written:
            path = self.path / f"{kind}_{iteration:06d}.jsonl"
            atomic_write(path, "".join(dumps(row) + "\n" for row in rows))
        if is_sent:
            columns, cells = table(rows[: self.table_rows])
            for logger in trainer.loggers:
                if isinstance(logger, TableLogger):
                    logger.log_table(f"samples/{kind}", columns, cells, step=iteration)


def sample_text(row: Row, title: str) -> Text:
    """Format a row for the terminal and for log files. Model output is never parsed as rich markup,
    and its control characters are shown as escapes."""
    lines = [Text(title, "bold")]
    for name in TEXT_COLUMNS:
        if row.get(name) is not None:
            text = printable(message_text(row[name]).strip())
            lines.append(Text.assemble((f"  {name:9}", "dim"), text.replace("\n", HANGING)))
    fields = []
    for name, value in row.items():
        if name not in TEXT_COLUMNS and isinstance(value, int | float | str):
            shown = f"{value:.3g}" if isinstance(value, float) else str(value)[:40]
            fields.append(f"{name} {shown}")
    lines.append(Text(f"  {printable('  '.join(fields))}", "dim"))
    return Text("\n").join(lines)


def _gather_rows(rows: Rows, trainer: Trainer) -> Rows:
    """Gather the rows of all ranks on the first rank; the others get none."""
    if trainer.world_size == 1:
        return rows
    gathered: list[Rows] | None = None
    if trainer.is_global_zero:
        gathered = [()] * trainer.world_size
    torch.distributed.gather_object(rows, gathered)
    return list(chain.from_iterable(gathered or []))


def table(rows: Rows) -> tuple[list[str], list[list[Cell]]]:
    """Return the columns of the rows that hold texts and numbers, and the cells of each row; None
    where a row lacks a column.

    A prompt of several messages becomes one text. Control characters, which a terminal or browser
    may execute, become escapes."""
    shown = list(map(_cells, rows))
    names = dict.fromkeys(chain.from_iterable(shown))
    columns = sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return columns, [list(map(cells.get, columns)) for cells in shown]


def _cells(row: Row) -> dict[str, Cell]:
    """Return the texts and numbers of a row by column."""
    cells: dict[str, Cell] = {}
    for name, value in row.items():
        text = message_text(value) if name == "prompt" else value
        if isinstance(text, str):
            cells[name] = printable(text[:MAX_CHARS])
        elif text is None or isinstance(text, float | int):
            cells[name] = text
    return cells
