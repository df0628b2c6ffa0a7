"""Files of data for tests."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a JSON Lines file, and return its path."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
