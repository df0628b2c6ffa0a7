"""Scoring function that `task_score` runs in worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlmods.grading.sandbox.run import Limits, call_function, check
from rlmods.grading.sandbox.wire import encode, refuse

TARGET = f"{__name__}:work"
PACKAGES = Limits(timeout_s=10.0, memory_mb=2048, output_bytes=1000, packages=True)


def work(job: tuple[Any, ...]) -> float | None:
    """Do one job of `TaskScore`: (limits) starts the server of confined processes, (limits, task,
    answer, entry) scores an answer."""
    if len(job) == 1:
        check("scorer", *job)
        return None
    limits, task, answer, entry = job
    return score(task, answer, entry, limits)


def score(task: str, answer: str, entry: Mapping[str, Any], limits: Limits = PACKAGES) -> float:
    """Return the score of `answer` as the answer to `entry`, by the scorer of the reasoning-gym
    task `task`.

    Raises:
        RuntimeError: this machine cannot confine the scorer, or there is no such task.
        TimeoutError: the scorer was stopped.
        ValueError: the scorer failed.
    """
    job = {"task": task, "answer": answer, "entry": encode(entry, refuse)}
    text, status = call_function("scorer", job, limits, context=task)
    if status == "timeout":
        raise TimeoutError("the scorer was stopped at its time limit")
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError as error:
        raise ValueError("the scorer failed") from error
