"""Scoring function that `task_score` runs in worker processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlmods.grading.sandbox.run import Limits, call_function, check
from rlmods.grading.sandbox.wire import encode

TARGET = f"{__name__}:work"


def work(job: tuple[Any, ...]) -> float | None:
    """Do one job of `TaskScore`: (limits) starts the server of confined processes, (limits, task,
    answer, entry) scores an answer."""
    limits, *call = job
    if not call:
        check("scorer", _limits(limits))
        return None
    task, answer, entry = call
    return score(task, answer, entry, limits)


def score(
    task: str, answer: str, entry: dict[str, Any], limits: Iterable[tuple[str, Any]] = ()
) -> float:
    """Return the score of `answer` as the answer to `entry`, by the scorer of the reasoning-gym
    task `task`.

    Raises:
        RuntimeError: this machine cannot confine the scorer, or there is no such task.
        TimeoutError: the scorer was stopped.
        ValueError: the scorer failed.
    """
    job = {"task": task, "answer": answer, "entry": encode(entry)}
    text, status = call_function("scorer", job, _limits(limits), context=task)
    if status == "timeout":
        raise TimeoutError("the scorer was stopped at its time limit")
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError as error:
        raise ValueError("the scorer failed") from error


def _limits(limits: Iterable[tuple[str, Any]]) -> Limits:
    return Limits(
        **{"packages": True, "memory_mb": 2048, "timeout_s": 10.0, "output_bytes": 1000}
        | dict(limits)
    )
