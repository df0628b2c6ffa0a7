"""Scoring function that `task_score` runs in worker processes."""

from __future__ import annotations

from typing import Any

TARGET = f"{__name__}:score"


def score(task: str, answer: str, entry: dict[str, Any]) -> float:
    """Score of `answer` as the answer to `entry`, by the scorer of the reasoning-gym task `task`."""
    from reasoning_gym import get_score_answer_fn

    return float(get_score_answer_fn(task)(answer=answer, entry=entry))
