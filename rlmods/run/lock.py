"""Lock of a run directory: one process at a time."""

from __future__ import annotations

import errno
import os
import socket
import warnings
from pathlib import Path

from filelock import FileLock, Timeout

from rlmods.errors import UserError

LOCK_FILE = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""

_locks: dict[Path, FileLock] = {}
"""Locks of this process, by directory. Neither forks nor other programs inherit them."""


def acquire(folder: Path) -> bool:
    """Lock the existing `folder` for this process until it ends, also by `kill -9`. Return False if
    this process had locked it already.

    On a file system without locks, warn instead.

    Raises:
        UserError: another process has locked it.
        OSError: the lock file cannot be written.
    """
    folder = folder.resolve()
    if is_locked(folder):
        return False
    lock = FileLock(folder / LOCK_FILE, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = (folder / LOCK_FILE).read_text(errors="replace").strip() or "another process"
        raise UserError(
            f"run_dir={folder} is in use by {owner}: type another run_dir=..., or end that run "
            "first"
        ) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        warnings.warn(
            f"{folder}: this file system has no locks ({error.strerror}): start no second run "
            "there",
            stacklevel=2,
        )
    _locks[folder] = lock
    return True


def is_locked(folder: Path) -> bool:
    """Return True if this process has locked `folder`."""
    lock = _locks.get(folder.resolve())
    return lock is not None and lock.is_locked


def write_owner(folder: Path) -> None:
    """Write host and process id of this process to the lock file, for the error message of
    others."""
    (folder / LOCK_FILE).write_text(f"process {os.getpid()} on {socket.gethostname()}\n")


def release(folder: Path) -> None:
    """Unlock `folder`; do nothing if this process has not locked it."""
    lock = _locks.pop(folder.resolve(), None)
    if lock is not None:
        lock.release()
