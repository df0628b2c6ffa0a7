"""Threads of environments: calls run in order and in parallel, and nothing waits for a call that
hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from rlmods.rollout.threads import Threads


def test_results_and_exceptions() -> None:
    with Threads(2, "test") as threads:
        futures = [threads.submit(divmod, 7, x) for x in (2, 0, 3)]
        assert futures[0].result(5) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            futures[1].result(5)
        assert futures[2].result(5) == (2, 1)


def test_threads_are_started_when_needed_and_are_no_more_than_the_count() -> None:
    active, peak, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal active, peak
        with lock:
            active += 1
            peak = max(peak, active)
        time.sleep(0.02)
        with lock:
            active -= 1

    with Threads(3, "test") as threads:
        threads.submit(work).result(5)
        time.sleep(0.05)  # until the thread is idle
        threads.submit(work).result(5)
        assert threads.num_threads == 1
        for future in [threads.submit(work) for _ in range(40)]:
            future.result(5)
        assert (threads.num_threads, peak) == (3, 3)


def test_leaving_waits_for_no_call_and_cancels_those_that_have_not_begun() -> None:
    hanging, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hanging.wait(30)

    start = time.monotonic()
    with suppress(KeyboardInterrupt), Threads(1, "test") as threads:
        threads.submit(hang)
        late = threads.submit(pow, 2, 3)
        begun.wait(5)
        raise KeyboardInterrupt
    assert time.monotonic() - start < 5
    with pytest.raises(CancelledError):
        late.result(5)
    hanging.set()


@pytest.mark.slow
def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    program = (
        "import time; from rlmods.rollout.threads import Threads\nwith Threads(1, 'test') as "
        "t: t.submit(time.sleep, 600); time.sleep(0.1)"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    assert time.monotonic() - start < 50


def test_threads_end_with_the_context() -> None:
    with Threads(4, "ending") as threads:
        for future in [threads.submit(time.sleep, 0.01) for _ in range(8)]:
            future.result(5)
    end = time.monotonic() + 5
    while any(thread.name.startswith("ending") for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)
