"""JSON Lines that grow row by row and survive being cut off."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from rlmods.run.files import dumps
from rlmods.types import UserError


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file, none where there is no file. A last line that was cut off is left out.

    Raises:
        UserError: the file cannot be read, or another line is no JSON object, by number.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), give another file") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _parse(line)
            if row is not None:
                rows.append(row)
            elif number < len(lines):
                raise UserError(f"{path}:{number}: broken JSON; the file needs one whole object a line")
    return rows


class Journal:
    """A JSON Lines file to add to, which need not be there. A row is on disk when `append` returns; threads may share a journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._whole = False

    def append(self, row: dict[str, Any]) -> None:
        """
        Raises:
            UserError: the file cannot be written.
        """
        with self._lock:
            try:
                if not self._whole:
                    self._mend()
                with self.path.open("ab") as file:
                    file.write(f"{dumps(row)}\n".encode(errors="backslashreplace"))  # half a surrogate pair, as JSON escapes it
            except OSError as error:
                raise UserError(f"{self.path}: cannot write there ({error.strerror}), choose another file") from error

    def _mend(self) -> None:
        """Cuts off what the last writer left of a line, or ends the line where only that was left."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            whole, newline, tail = file.read().rpartition(b"\n")
            if _parse(tail) is not None:
                file.write(b"\n")
            else:
                file.truncate(len(whole) + len(newline))
        self._whole = True


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # broken JSON, and half a character
        return None
    return row if isinstance(row, dict) else None
