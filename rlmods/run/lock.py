"""One process a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import warnings
from contextlib import suppress
from pathlib import Path

from rlmods.types import UserError

NAME = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems say that know no locks."""

_held: dict[Path, int] = {}
"""File descriptors of this process, by directory. Other programs do not inherit them."""


def hold(folder: Path) -> bool:
    """Keep `folder`, which exists, for this process until it ends, however it ends; whether it was not held before.

    Where the file system knows no locks, that is a warning.

    Raises:
        UserError: another process has it.
        OSError: nothing can be written there.
    """
    folder = folder.resolve()
    if folder in _held:
        return False
    file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(file, 256, 0).decode(errors="replace").strip() or "another process"
        os.close(file)
        raise UserError(f"run_dir={folder} is in use by {owner}: type another run_dir=..., or end that run first") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            os.close(file)
            raise
        warnings.warn(f"{folder}: this file system knows no locks ({error.strerror}): start no second run there", stacklevel=2)
    _held[folder] = file
    return True


def sign(folder: Path) -> None:
    """Write down who has it, for others to be told."""
    file = _held[folder.resolve()]
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def release(folder: Path) -> None:
    """Let others have it."""
    if (file := _held.pop(folder.resolve(), None)) is not None:
        os.close(file)


def _forget() -> None:
    """A fork without exec shares its parent's lock, and would keep it beyond the parent's end."""
    while _held:
        with suppress(OSError):
            os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_forget)
