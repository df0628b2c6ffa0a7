"""Run a reward in worker processes."""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.grading.isolation import to_message
from rlmods.grading.pool import failure_counts, shared_pool
from rlmods.needs import RewardNeeds, needs_of
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Response, Scores

UNSUPPORTED = {
    "group": "compares the responses to a prompt",
    "gives_steps": "gives rewards by step",
    "gives_tokens": "gives rewards by token",
    "turns": "reads the turns of a response, which workers do not get",
}
"""Needs (`RewardNeeds`) of rewards that do not run in worker processes, and why."""


@dataclass(frozen=True)
@bounded("reward")
class Isolated:
    """Runs a reward on each response separately, in a worker process that can be killed. If the
    reward hangs, crashes, exits or runs out of memory on a response, or scores it NaN or infinite,
    that response is unscored (None) and counted (`timeouts`, `errors`); others are not affected.

    The reward and the columns of the data must be picklable. The reward gets one response at a
    time, with `.text`, `.tokens`, `.finish` and `.prompt`, which has `.id`, `.text`, `.messages`,
    `.answer`, `.meta`.

    Raises:
        UserError: a reward that cannot be pickled, or needs more than one response or its turns.
    """

    reward: Callable[[Sequence[Any]], Any]
    timeout_s: Positive
    """Timeout for one response."""
    batch_timeout_s: float = 600.0
    """Timeout for all responses of one call. Those not scored by then count as `timeouts`."""
    workers: int = 2
    """Number of processes."""

    def __post_init__(self) -> None:
        needs = needs_of(self.reward, RewardNeeds)
        for trait, reason in UNSUPPORTED.items():
            if getattr(needs, trait):
                raise UserError(
                    f"timeout_s scores one response at a time, but this reward {reason}: drop "
                    "timeout_s"
                )
        try:
            self._pickled  # noqa: B018
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                "timeout_s runs a reward in another process, but this reward cannot be "
                f"pickled: {error}"
            ) from error

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self.reward)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        pool = shared_pool("rlmods.grading.isolation:answer", self.workers, self._pickled)
        outcomes = pool.map(
            [(to_message(response),) for response in responses],
            timeout_s=self.timeout_s,
            batch_timeout_s=self.batch_timeout_s,
        )
        values: list[float | None] = [None] * len(responses)
        correct: list[bool | None] = [None] * len(responses)
        counts = Counter(failure_counts(outcomes))
        columns: dict[str, list[Any]] = {}
        monitored = False
        for row, outcome in enumerate(outcomes):
            if outcome.status != "ok":
                continue
            values[row] = outcome.value["value"]
            correct[row] = outcome.value["correct"]
            counts.update(outcome.value["counts"])
            for name, cell in outcome.value["columns"].items():
                columns.setdefault(name, [None] * len(responses))[row] = cell
            monitored |= outcome.value["monitored"]
        return Scores(
            values,
            correct=None if correct.count(None) == len(correct) else correct,
            monitored=monitored,
            counts=counts,
            columns=dict(sorted(columns.items())),
        )
