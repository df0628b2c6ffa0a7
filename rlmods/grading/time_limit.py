"""Time limit of a block of Python in the main thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class LateError(BaseException):
    """A block took too long. Not an Exception, so that the block itself does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise LateError in the block after `seconds`, also within a regular expression. For the main
    thread only."""

    def on_alarm(*_: object) -> None:
        raise LateError

    handler = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
