"""Folder for weights on their way to other processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir, mkdtemp

MEMORY = Path("/dev/shm")
"""File system in memory, where the system has one."""
PREFIX = "rlmods-weights-"
MIN_AGE_S = 60.0
"""Age from which on a folder that no process has locked is abandoned. A younger one may not be
locked yet."""


@dataclass(frozen=True)
class WeightFolder:
    """A folder that exists until `remove`. In memory it is locked, so that others know whether its
    process still runs."""

    path: Path
    directory: int | None
    """The locked directory; None outside of `MEMORY`."""

    @classmethod
    def create(cls, parent: str | None, size: int) -> WeightFolder:
        """Create a folder for `size` bytes: in `parent`, by default in memory if there is room,
        else in the system's temporary folder. Folders in memory whose processes were killed are
        removed first.

        Raises:
            OSError: it cannot be written.
        """
        if parent is None:
            remove_abandoned()
        in_memory = (
            parent is None
            and os.access(MEMORY, os.W_OK)
            and shutil.disk_usage(MEMORY).free > 1.1 * size
        )
        place = MEMORY if in_memory else Path(parent or gettempdir())
        place.mkdir(parents=True, exist_ok=True)
        path = Path(mkdtemp(prefix=PREFIX, dir=place))
        path.chmod(0o755)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if in_memory else None
        if directory is not None:
            fcntl.flock(directory, fcntl.LOCK_EX)
        return cls(path, directory)

    def remove(self) -> None:
        """Remove the folder and its files."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.directory is not None:
            os.close(self.directory)


def remove_abandoned() -> None:
    """Remove this user's folders in memory that no process has locked."""
    for path in MEMORY.glob(f"{PREFIX}*"):
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # not a folder, or another process has removed it
            continue
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(directory).st_mtime >= MIN_AGE_S:
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(directory)
