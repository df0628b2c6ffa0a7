"""JSON Lines files that are appended to row by row and stay readable after a crash."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

from rlmods.errors import UserError
from rlmods.run.files import atomic_write, dumps


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, [] if it does not exist. An incomplete last line is
    skipped.

    Raises:
        UserError: the file cannot be read, or another line (named by its number) is not a JSON
            object.
    """
    rows = []
    lines = _read_lines(path)
    for number, line in enumerate(lines, 1):
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):
            raise UserError(f"{path}:{number}: broken JSON; the file needs one whole object a line")
    return rows


def truncate_rows(path: Path, iteration: int) -> list[dict[str, Any]]:
    """Delete rows after `iteration`, rows without one and broken lines from a file of per-iteration
    rows; return the rows kept. Warns of broken lines, except for an incomplete last one, which a
    crash leaves.

    Raises:
        UserError: the file cannot be read or written.
    """
    lines = _read_lines(path)
    kept_rows = []
    kept_lines = []
    num_broken = 0
    for number, line in enumerate(lines, 1):
        row = _parse(line)
        if row is None:
            num_broken += bool(line.strip()) and number < len(lines)
        elif isinstance(row.get("iteration"), int) and row["iteration"] <= iteration:
            kept_rows.append(row)
            kept_lines.append(line + b"\n")
    if num_broken:
        warnings.warn(
            f"{path}: {num_broken} broken lines in the middle of the file are deleted", stacklevel=2
        )
    content = b"".join(kept_lines)
    if content != b"\n".join(lines):
        atomic_write(path, content)
    return kept_rows


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
    """Return the lines of a file, the incomplete last one ("" if there is none) among them."""
    try:
        return path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), give another file") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # broken JSON, or an incomplete UTF-8 character
        return None
    return row if isinstance(row, dict) else None
