"""A reward in processes of its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlmods.reward.isolation import record
from rlmods.reward.pool import failures, shared
from rlmods.reward.scores import as_scores
from rlmods.types import Response, Scores, UserError


@dataclass(frozen=True)
class Isolated:
    """Scores each response by itself in a worker process that can be killed: what hangs, crashes, exits or takes all memory costs its own
    response and nothing else. Such a response is unscored (None), and counted: `timeouts`, `errors`.

    The reward and the columns of the data must be picklable, and it sees one response at a time: `.text`, `.tokens`, `.finish` and
    `.prompt` with `.id`, `.text`, `.messages`, `.answer`, `.meta`.

    Raises:
        UserError: a time that is not positive, or a reward that cannot be sent to another process.
    """

    reward: Callable[[Sequence[Any]], Any]
    timeout_s: float
    """For one response."""
    batch_timeout_s: float = 600.0
    """For all of one call. What is not scored by then counts under `timeouts`."""
    workers: int = 2

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise UserError(f"timeout_s={self.timeout_s}: must be above 0")
        for trait, what in (("needs_group", "compares the responses to a prompt"), ("gives_steps", "gives rewards by step")):
            if getattr(self.reward, trait, False):
                raise UserError(f"timeout_s scores one response at a time, and this reward {what}: drop timeout_s")
        try:
            self._pickled  # noqa: B018
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(f"timeout_s runs a reward in another process, and this one cannot be sent there: {error}") from error

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self.reward)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        pool = shared("rlmods.reward.isolation:answer", self.workers, os.getpid(), self._pickled)
        calls = [(record(response),) for response in responses]
        outcomes = pool.map(calls, timeout_s=self.timeout_s, batch_timeout_s=self.batch_timeout_s) if calls else []
        found = [
            outcome.value if outcome.status == "ok" else {"value": None, "correct": None, "counts": {}, "columns": {}, "monitored": False}
            for outcome in outcomes
        ]
        counts = failures(outcomes)
        for one in found:
            for name, count in one["counts"].items():
                counts[name] = counts.get(name, 0) + count
        knows = any(one["correct"] is not None for one in found)
        values = as_scores([one["value"] for one in found], len(responses), "isolated").values
        names = sorted({name for one in found for name in one["columns"]})
        return Scores(
            values,
            correct=[one["correct"] for one in found] if knows else None,
            monitored=any(one["monitored"] for one in found),
            counts=counts,
            columns={name: [one["columns"].get(name) for one in found] for name in names},
        )
