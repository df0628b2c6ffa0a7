"""JSON Lines files that are appended to row by row and stay readable after a crash."""

from __future__ import annotations

import io
import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rlmods.errors import UserError
from rlmods.run.files import atomic_write, dumps

MAX_LINE_BYTES = 100_000_000
"""Longest line that is read: a received file may be one line larger than the memory."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, [] if it does not exist. An incomplete last line is
    skipped.

    Raises:
        UserError: the file cannot be read, or another line (named by its number) is not a JSON
        object or longer than `MAX_LINE_BYTES`.
    """
    rows = []
    with _opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            row = _parse(line)
            if row is not None:
                rows.append(row)
            elif len(line) == MAX_LINE_BYTES:
                raise UserError(
                    f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes: give "
                    "another file"
                )
            elif line.strip() and line.endswith(b"\n"):
                raise UserError(
                    f"{path}:{number}: broken JSON; the file needs one whole object a line"
                )
    return rows


def truncate_rows(path: Path, iteration: int) -> list[dict[str, Any]]:
    """Delete rows after `iteration`, rows without one and broken lines from a file of per-iteration
    rows; return the rows kept. Warns of broken lines, except for an incomplete last one, which a
    crash leaves.

    Raises:
        UserError: the file cannot be read or written.
    """
    lines = _read_lines(path)
    parsed = [_parse(line) for line in lines]
    if broken := sum(
        row is None and bool(line.strip())
        for row, line in zip(parsed[:-1], lines[:-1], strict=True)
    ):
        warnings.warn(
            f"{path}: {broken} broken lines in the middle of the file are deleted", stacklevel=2
        )
    rows = [
        (row, line)
        for row, line in zip(parsed, lines, strict=True)
        if row is not None and isinstance(row.get("iteration"), int)
    ]
    rows = [(row, line) for row, line in rows if row["iteration"] <= iteration]
    content = b"".join(line + b"\n" for _, line in rows)
    if content != b"\n".join(lines):
        atomic_write(path, content)
    return [row for row, _ in rows]


class JsonlWriter:
    """Append rows to a JSON Lines file, created if missing. A row is on disk when `append` returns;
    thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._repaired = False

    def append(self, row: dict[str, Any]) -> None:
        """
        Raises:
            UserError: the file cannot be written.
        """
        with self._lock:
            try:
                if not self._repaired:
                    self._repair()
                with self.path.open("ab") as file:
                    # lone surrogates, escaped as in JSON
                    file.write(f"{dumps(row)}\n".encode(errors="backslashreplace"))
            except OSError as error:
                raise UserError(
                    f"{self.path}: cannot write there ({error.strerror}), choose another file"
                ) from error

    def _repair(self) -> None:
        """Delete an incomplete last line left by a crash, or add the newline if only that is
        missing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            complete, newline, last_line = file.read().rpartition(b"\n")
            if _parse(last_line) is not None:
                file.write(b"\n")
            else:
                file.truncate(len(complete) + len(newline))
        self._repaired = True


def _read_lines(path: Path) -> list[bytes]:
    with _opened(path) as file:
        return file.read().split(b"\n")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; an empty one in place of one that does not exist."""
    if path.is_fifo() or path.is_char_device():  # may never end
        raise UserError(f"{path}: is not a file, give another one")
    try:
        with path.open("rb") if path.exists() else io.BytesIO() as file:
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), give another file") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # broken JSON, or an incomplete UTF-8 character
        return None
    return row if isinstance(row, dict) else None
