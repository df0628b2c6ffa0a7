"""Rows of the corpora of mathematical answers, and the time limit under which they are graded."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType

LIMIT_S = 2.0
"""A verdict that takes longer counts as late. Ordinary verdicts take far less than a millisecond."""
WRAPPERS = (r"\boxed{ANSWER}", "<answer>ANSWER</answer>", "#### ANSWER", "The answer is $ANSWER$.", r"So we get \[\boxed{ANSWER}\]")
"""Responses that state an answer, in each of the formats that the grader reads."""


@dataclass(frozen=True)
class Row:
    """A response with its gold answer."""

    family: str
    gold: str
    text: str
    """The whole response."""
    honest: bool
    """True if the response is right and must be paid, False if it must not be."""
    reason: str = ""
    """Why, if that is not obvious from the two texts."""


@dataclass(frozen=True)
class Graded:
    """Outcome of a row: paid or refused, or None if the verdict was late."""

    row: Row
    paid: bool | None
    seconds: float


class LateError(BaseException):
    """The time limit has passed. Not an Exception, so that the graded code does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise LateError in the block once it has run for `seconds`; also within a regular expression. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("time_limit works in the main thread only")

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise LateError

    handler, (previous_s, _) = signal.signal(signal.SIGALRM, on_alarm), signal.setitimer(signal.ITIMER_REAL, seconds)
    start = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if previous_s:  # such as that of pytest-timeout
            signal.setitimer(signal.ITIMER_REAL, max(0.1, previous_s - (time.monotonic() - start)))


def grade(rows: Sequence[Row], verify: Callable[[str, str], bool], limit_s: float = LIMIT_S) -> list[Graded]:
    """Grade rows one after the other, each under the time limit."""
    graded = []
    for row in rows:
        start = time.perf_counter()
        paid: bool | None = None
        try:
            with time_limit(limit_s):
                paid = verify(row.text, row.gold)
        except LateError:
            pass
        graded.append(Graded(row, paid, time.perf_counter() - start))
    return graded


def wrap(rng: Random, answer: str, wrappers: Sequence[str] = WRAPPERS) -> str:
    """Return a response that states `answer` in a format drawn from `wrappers`, one that can hold its markup and line breaks."""
    formula, markdown, lines = "$" in answer.replace(r"\$", ""), "**" in answer, "\n" in answer
    refused = [mark for mark, found in (("$", formula or markdown), ("\\", markdown), ("#", lines)) if found]
    fitting = [wrapper for wrapper in wrappers if not any(mark in wrapper for mark in refused)]
    return rng.choice(fitting).replace("ANSWER", answer)


def unique(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without repetitions, in order."""
    return list({(row.gold, row.text): row for row in rows}.values())
