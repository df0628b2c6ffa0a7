"""Time limit of a block of Python in the main thread."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

REPEAT_S = 0.5
"""Time between the alarms, from the first one until the block ends."""


class LateError(BaseException):
    """A block took too long. Not an Exception, so that the block itself does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise LateError in the block after `seconds`, also within a regular expression. For the main
    thread only.

    Python drops an exception in a finalizer or in a callback of the garbage collector. The alarm
    is therefore repeated."""

    def on_alarm(*_: object) -> None:
        raise LateError

    handler = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
