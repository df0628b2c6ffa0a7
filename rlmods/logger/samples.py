"""Tables of samples for loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rlmods.run.printable import printable

FIRST = ("prompt", "response", "answer", "reward", "advantage")
"""Columns of a table that come first, if the rows have them."""
MAX_CHARS = 10_000
"""Longer texts are cut."""

Cell = str | float | int | bool | None


@runtime_checkable
class SampleLogger(Protocol):
    """Logger that keeps tables of samples."""

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log rows of the sample log. `name` is `iteration` or `validation`, `step` the number of
        completed iterations."""
        ...


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return the columns of the rows that hold texts and numbers, and the cells of each row; None
    where a row lacks a column.

    A prompt of several messages becomes one text. Control characters, which a terminal or browser
    may execute, become escapes."""
    cells = [
        {name: _cell(value) for name, value in row.items() if _is_shown(name, value)}
        for row in rows
    ]
    found = dict.fromkeys(name for row in cells for name in row)
    columns = [
        *(name for name in FIRST if name in found),
        *(name for name in found if name not in FIRST),
    ]
    return columns, [[row.get(name) for name in columns] for row in cells]


def _is_shown(name: str, value: Any) -> bool:
    return name == "prompt" or value is None or isinstance(value, str | float | int)


def _cell(value: Any) -> Cell:
    if isinstance(value, list):  # messages
        value = "\n".join(f"{message['role']}: {message['content']}" for message in value)
    return printable(value[:MAX_CHARS]) if isinstance(value, str) else value
