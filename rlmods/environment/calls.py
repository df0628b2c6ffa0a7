"""Calls of tools: in this process, or in a worker process that is killed at the time limit."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from rlmods.environment.worker import to_text
from rlmods.grading.pool import Outcome, Pool, WorkerError

WORKER = "rlmods.environment.worker:work"
Timed = tuple[Outcome, float]
"""Outcome of a call, and its seconds."""


def call_here(function: Callable[..., Any], arguments: Mapping[str, Any], max_chars: int) -> Timed:
    """Call a function in this process."""
    start = time.perf_counter()
    try:
        outcome = Outcome("ok", to_text(function(**arguments), max_chars))
    except Exception as error:  # whatever a tool raises is observed by the policy
        outcome = Outcome("error", f"{type(error).__name__}: {error}")
    return outcome, time.perf_counter() - start


def call_in_worker(
    target: str, arguments: Mapping[str, Any], max_chars: int, *, timeout_s: float, workers: int
) -> Timed:
    """Call a function, "module:function", in one of `workers` processes. The wait for a free one
    counts neither as time of the call nor for its limit."""
    free = _pools(workers, os.getpid())
    pool = free.get()
    start = time.perf_counter()
    call = (target, dict(arguments), max_chars)
    try:
        [outcome] = pool.map([call], timeout_s=timeout_s, batch_timeout_s=float("inf"))
    except WorkerError as error:  # the process ends in every call, or does not start
        pool.close()
        pool = Pool(WORKER, workers=1)
        outcome = Outcome("error", str(error))
    finally:
        free.put(pool)
    return outcome, time.perf_counter() - start


@cache
def _pools(count: int, process_id: int) -> queue.LifoQueue[Pool]:
    """Return this process's pools of one worker each, as a pool runs one batch of calls at a time;
    a forked child must not use its parent's pipes."""
    pools: queue.LifoQueue[Pool] = queue.LifoQueue()
    for _ in range(count):
        pools.put(Pool(WORKER, workers=1))
    return pools
