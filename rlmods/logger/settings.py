"""Configuration of a run as flat names and values, and identifiers by which a resumed run is found
again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlmods.errors import UserError
from rlmods.run import atomic_write, dumps

FILE = "trackers.json"
"""File of the run directory with the identifier of the run in each tracker."""


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings as (dotted key, value), as they are typed in overrides."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_identifier(folder: str | Path, tracker: str) -> str | None:
    """Return the identifier of the run of this directory in a tracker, None if it has none yet.

    Raises:
        UserError: the file is broken.
    """
    identifier = _read(Path(folder) / FILE).get(tracker)
    return None if identifier is None else str(identifier)


def write_identifier(folder: str | Path, tracker: str, identifier: str) -> None:
    """Record the identifier of the run of this directory in a tracker."""
    path = Path(folder) / FILE
    atomic_write(path, dumps(_read(path) | {tracker: identifier}) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: broken: delete it, and the trackers begin new runs") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: broken: delete it, and the trackers begin new runs")
    return found
