"""Atomic file writes, JSON without NaN, and JSON Lines files that stay readable after a crash."""

import json
import math
import os
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlmods.errors import UserError

INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of control and format characters, surrogates, and separators of lines and
paragraphs."""


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes to `path`, into a one-line error.

    Raises:
        UserError: full disk, quota, missing folder.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot write there ({error.strerror}): make room, or choose another "
            "run_dir=... or out=..."
        ) from error


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace `path` atomically, creating its folder: a reader, or a crash, sees the old file or
    the new one, never a part. Lone surrogates are written escaped, as in JSON.

    Raises:
        UserError: the file cannot be written.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    with wrap_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def dumps(value: object, indent: int | None = None) -> str:
    """Return standard JSON: NaN and infinities become null, tensors and arrays lists, other unknown
    types their `str`."""
    try:  # most values need no change, and copying them takes longer than writing them
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, indent=indent, default=_to_json
        )
    except (TypeError, ValueError):  # keys that are not strings, NaN and infinities
        return json.dumps(_to_json(value), ensure_ascii=False, allow_nan=False, indent=indent)


def printable(text: str) -> str:
    """Return text with characters that a terminal would execute, other than newlines and tabs, as
    escapes such as `\\x1b`: policies sample them."""
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in INVISIBLE and c not in "\n\t"
        else c
        for c in text
    )


def message_text(prompt: object) -> str:
    """Return a prompt of the sample log as text: chat messages by role."""
    if not isinstance(prompt, list):
        return str(prompt)
    return "\n".join(f"{message['role']}: {message.get('content')}" for message in prompt)


def one_line(text: str) -> str:
    """Return `printable` text with newlines and tabs as escapes too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def shorten(text: str, length: int) -> str:
    """Return the beginning of a text in one line of at most `length` characters."""
    line = one_line(text.strip())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def _to_json(value: object) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return list(map(_to_json, value))
    return _to_json(value.tolist()) if hasattr(value, "tolist") else str(value)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, [] if it does not exist. An incomplete last line is
    skipped.

    Raises:
        UserError: the file cannot be read, or another line (named by its number) is not a JSON
            object.
    """
    rows = []
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        row = parse_row(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):
            raise UserError(f"{path}:{number}: broken JSON; the file needs one whole object a line")
    return rows


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
        with self._lock, wrap_write_errors(self.path):
            if not self._repaired:
                self._repair()
            with self.path.open("ab") as file:
                # lone surrogates, escaped as in JSON
                file.write(f"{dumps(row)}\n".encode(errors="backslashreplace"))

    def _repair(self) -> None:
        """Delete an incomplete last line left by a crash, or add the newline if only that is
        missing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            complete, newline, last_line = file.read().rpartition(b"\n")
            if parse_row(last_line) is not None:
                file.write(b"\n")
            else:
                file.truncate(len(complete) + len(newline))
        self._repaired = True


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, the incomplete last one ("" if there is none) among them."""
    try:
        return path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), give another file") from error


def parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # broken JSON, or an incomplete UTF-8 character
        return None
    return row if isinstance(row, dict) else None
