"""Folder for weights on their way to other processes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from tempfile import gettempdir, mkdtemp

MEMORY = Path("/dev/shm")
"""File system in memory, where the system has one."""
PREFIX = "rlmods-weights-"
MAX_AGE_S = 3600.0
"""Age of a folder in memory from which on its process was killed: no transfer takes as long."""


def create_folder(parent: str | None, size: int) -> Path:
    """Create a folder for `size` bytes: in `parent`, by default in memory if there is room, else in
    the system's temporary folder. What killed processes left in memory is removed first.

    Raises:
        OSError: it cannot be written.
    """
    place = Path(parent or gettempdir())
    if parent is None and os.access(MEMORY, os.W_OK):
        for path in MEMORY.glob(f"{PREFIX}*"):
            if time.time() - path.lstat().st_mtime > MAX_AGE_S:
                shutil.rmtree(path, ignore_errors=True)
        if shutil.disk_usage(MEMORY).free > 1.1 * size:
            place = MEMORY
    place.mkdir(parents=True, exist_ok=True)
    path = Path(mkdtemp(prefix=PREFIX, dir=place))
    path.chmod(0o755)
    return path
