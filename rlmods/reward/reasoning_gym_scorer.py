"""What `task_score` calls in its worker processes."""

from __future__ import annotations

from typing import Any

TARGET = f"{__name__}:score"


def score(task: str, answer: str, entry: dict[str, Any]) -> float:
    """The score that reasoning-gym's `task` gives to `answer` as the answer to `entry`."""
    from reasoning_gym import get_score_answer_fn

    return float(get_score_answer_fn(task)(answer=answer, entry=entry))
