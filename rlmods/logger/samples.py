"""Tables of samples for loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rlmods.run.files import printable

FIRST = ("prompt", "response", "answer", "reward", "advantage")
"""Columns of a table that come first, if the rows have them."""
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
        ...


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return the columns of the rows that hold texts and numbers, and the cells of each row; None
    where a row lacks a column.

    A prompt of several messages becomes one text. Control characters, which a terminal or browser
    may execute, become escapes."""
    shown: dict[str, None] = {}
    for row in rows:
        shown |= {name: None for name, value in row.items() if _is_shown(name, value)}
    first = [name for name in FIRST if name in shown]
    columns = first + [name for name in shown if name not in FIRST]
    return columns, [_cells(row, columns) for row in rows]


def _cells(row: Mapping[str, Any], columns: Sequence[str]) -> list[Cell]:
    return [_cell(name, row.get(name)) for name in columns]


def _is_shown(name: str, value: object) -> bool:
    return name == "prompt" or value is None or isinstance(value, str | float | int)


def _cell(name: str, value: Any) -> Cell:
    if not _is_shown(name, value):
        return None
    if isinstance(value, list):  # messages
        value = "\n".join(f"{message['role']}: {message['content']}" for message in value)
    return printable(value[:MAX_CHARS]) if isinstance(value, str) else value
