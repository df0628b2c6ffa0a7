"""Reward from the scorers of the reasoning-gym package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from rlmods.reward.grader.extract import extract
from rlmods.reward.pool import failure_counts, shared_pool
from rlmods.reward.reasoning_gym_scorer import TARGET
from rlmods.types import Response, Scores, UserError


@dataclass(frozen=True)
class TaskScore:
    """Score, 0 to 1, of a reasoning-gym task's own scorer; 0 for a response without an answer. Abstains for prompts of other data.

    The task and its entry are read from the prompt (`data=reasoning_gym` sets `meta["task"]` and `meta["entry"]`). Scorers run in worker
    processes; an answer that cannot be scored gets 0 and is counted under `timeouts` or `errors`.

    Raises: UserError if the package is missing.
    """

    threshold: float = 0.99
    """Smallest score that counts as `correct`."""
    timeout_s: float = 10.0
    """Time limit for one answer."""
    batch_timeout_s: float = 300.0
    """Time limit for all answers of one call. Answers not scored by then count as `timeouts`."""
    workers: int = 2
    """Worker processes, started at the first use and kept."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if find_spec("reasoning_gym") is None:
            raise UserError("TaskScore needs the reasoning-gym package: type pip install 'rlmods[reasoning_gym]'")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        answers = [extract(response.text) for response in responses]
        rows = [row for row, response in enumerate(responses) if {"task", "entry"} <= set(response.prompt.meta)]
        calls = [(row, *_call(responses[row].prompt.meta, answer)) for row in rows if (answer := answers[row]) is not None]
        pool = shared_pool(TARGET, self.workers, os.getpid())
        outcomes = pool.map([call[1:] for call in calls], timeout_s=self.timeout_s, batch_timeout_s=self.batch_timeout_s) if calls else []
        values: list[float | None] = [None] * len(responses)
        for row in rows:
            values[row] = 0.0
        for call, outcome in zip(calls, outcomes, strict=True):
            values[call[0]] = float(outcome.value) if outcome.status == "ok" else 0.0
        return Scores(
            values=values,
            correct=[None if value is None else value >= self.threshold for value in values],
            counts=failure_counts(outcomes),
            columns={"extracted": answers},
        )


def _call(meta: Mapping[str, Any], answer: str) -> tuple[str, str, Any]:
    return meta["task"], answer, meta["entry"]
