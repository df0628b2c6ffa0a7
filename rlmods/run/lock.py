"""Lock of a run directory: one process at a time.

Both a file in the directory and the directory itself are locked: the file may be deleted, and
another process would lock a new one; the directory cannot be locked on every network file system.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import warnings
from pathlib import Path

from filelock import FileLock, Timeout

from rlmods.errors import UserError

LOCK_FILE = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""
NOT_OF_FOLDERS = (*UNSUPPORTED, errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM)
"""Errors of file systems that lock files only."""

_locks: dict[Path, tuple[FileLock, int]] = {}
"""Locks of this process, by directory, and the open directories. Neither forks nor other programs
inherit them."""


def acquire(folder: Path) -> bool:
    """Lock the existing `folder` for this process until it ends, also by `kill -9`. Return False if
    this process had locked it already.

    On a file system without locks, warn instead.

    Raises:
        UserError: another process has locked it.
        OSError: the lock file cannot be written.
    """
    folder = folder.resolve()
    if folder in _locks and _locks[folder][0].is_locked:
        return False
    lock = FileLock(folder / LOCK_FILE, thread_local=False, fallback_to_soft=False)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock_directory(directory)
        lock.acquire(blocking=False)
    except (Timeout, BlockingIOError):
        os.close(directory)
        raise UserError(
            f"run_dir={folder} is in use by {_owner(folder)}: type another run_dir=..., or "
            "end that run first"
        ) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            os.close(directory)
            raise
        warnings.warn(
            f"{folder}: this file system has no locks ({error.strerror}): start no second run "
            "there",
            stacklevel=2,
        )
    _locks[folder] = lock, directory
    return True


def is_locked(folder: Path) -> bool:
    """Return True if this process has locked `folder`."""
    return (held := _locks.get(folder.resolve())) is not None and held[0].is_locked


def _lock_directory(directory: int) -> None:
    """Lock an open directory, where the file system can. Raises: BlockingIOError if another process
    has locked it."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in NOT_OF_FOLDERS:
            raise


def _owner(folder: Path) -> str:
    try:
        return (folder / LOCK_FILE).read_bytes()[:256].decode(
            errors="replace"
        ).strip() or "another process"
    except OSError:  # deleted
        return "another process"


def _close_in_fork() -> None:
    for folder, (lock, directory) in _locks.items():
        os.close(directory)
        _locks[folder] = lock, -1


os.register_at_fork(after_in_child=_close_in_fork)


def write_owner(folder: Path) -> None:
    """Write host and process id of this process to the lock file, for the error message of
    others."""
    (folder / LOCK_FILE).write_text(f"process {os.getpid()} on {socket.gethostname()}\n")


def release(folder: Path) -> None:
    """Unlock `folder`; do nothing if this process has not locked it."""
    if (held := _locks.pop(folder.resolve(), None)) is not None:
        lock, directory = held
        lock.release()
        if directory >= 0:
            os.close(directory)
