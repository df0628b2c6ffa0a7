"""TensorBoard."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard.summary import hparams

from rlmods.logger.samples import Cell, table
from rlmods.logger.settings import flatten


class TensorBoard(TensorBoardLogger):
    """Event files with the metrics, the configuration (`hparams.yaml` and the tab "HParams") and
    tables of samples (the tab "Text")."""

    def __init__(self, save_dir: str | Path, name: str = "tensorboard") -> None:
        """
        Args:
            save_dir: the run directory.
            name: folder in it.
        """
        super().__init__(save_dir, name, default_hp_metric=False)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Log the settings by their dotted names, with `val/accuracy` as the result to compare
        by."""
        settings = dict(flatten(params if isinstance(params, Mapping) else vars(params)))
        self.hparams = settings
        plain = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in settings.items()
        }
        writer = self.experiment._get_file_writer()
        # Declares the metric; its values are the scalars of that name.
        for summary in hparams(plain, {"val/accuracy": 0.0}):  # type: ignore[no-untyped-call]
            writer.add_summary(summary)
        self.save()

    @rank_zero_only
    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log the rows as a Markdown table."""
        self.experiment.add_text(f"samples/{name}", markdown(*table(rows)), step)


def markdown(columns: Sequence[str], cells: Sequence[Sequence[Cell]]) -> str:
    """Return a Markdown table whose texts are shown as they are: punctuation, which may be markup,
    becomes character references."""
    lines = [columns, ["---"] * len(columns), *([_format(cell) for cell in row] for row in cells)]
    header = [_escape(name) for name in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, *lines[1:]))


def _format(cell: Cell) -> str:
    return "" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else _escape(str(cell))


def _escape(text: str) -> str:
    escaped = re.sub(r"[^\w\s]", lambda match: f"&#{ord(match[0])};", text)
    return re.sub(r"_", "&#95;", escaped).replace("\n", "<br>")
