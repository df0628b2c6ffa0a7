"""Reward for a final answer that equals the gold answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlmods.reward.grader import extract, extract_gold, same_plain, verify
from rlmods.reward.pool import Outcome, failure_counts, shared_pool
from rlmods.types import Response, Scores, UserError

__all__ = ["Accuracy", "verify"]


@dataclass(frozen=True)
class Accuracy:
    """Reward `correct` if the final answer of the response (`extract`) equals `prompt.answer` (`compare`), else `wrong`. Abstains without
    a gold answer.

    Plain numbers and words are compared in this process, everything else in worker processes with a deadline. An answer that cannot be
    graded scores `wrong` and is counted: `timeouts`, `errors`. Raises RuntimeError if no worker process can be started.
    """

    correct: float = 1.0
    wrong: float = 0.0
    timeout_s: float = 5.0
    """Timeout for one answer. Grading takes milliseconds; this allows for a busy machine."""
    batch_timeout_s: float = 300.0
    """Timeout for all answers of one call. Those not graded by then count as `timeouts`."""
    workers: int = 2
    """Number of processes, started when first needed and kept. Rewards with equal numbers share them."""

    needs_answer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("timeout_s", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(f"Accuracy: {name}={getattr(self, name)} is not positive")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        answers = [extract(response.text) for response in responses]
        golds = [None if response.prompt.answer is None else extract_gold(response.prompt.answer) for response in responses]
        verdicts = [_plain_verdict(answer, gold) for answer, gold in zip(answers, golds, strict=True)]
        pending = [row for row, gold in enumerate(golds) if verdicts[row] is None and gold is not None]
        outcomes = self._grade([(answers[row], golds[row]) for row in pending])
        for row, outcome in zip(pending, outcomes, strict=True):
            verdicts[row] = outcome.status == "ok" and outcome.value is True
        return Scores(
            values=[None if verdict is None else float(self.correct if verdict else self.wrong) for verdict in verdicts],
            correct=verdicts,
            counts=failure_counts(outcomes),
            columns={"extracted": answers},
        )

    def _grade(self, pairs: list[tuple[str | None, str | None]]) -> list[Outcome]:
        """Grade each distinct pair once. Verdicts are cached; timeouts and errors are not."""
        distinct = list(dict.fromkeys(pairs))
        graded = {pair: outcome for pair in distinct if (outcome := _VERDICTS.get(pair)) is not None}
        if missing := [pair for pair in distinct if pair not in graded]:
            pool = shared_pool("rlmods.reward.grader:same_answer", self.workers, os.getpid())
            outcomes = pool.map(missing, timeout_s=self.timeout_s, batch_timeout_s=self.batch_timeout_s)
            new = dict(zip(missing, outcomes, strict=True))
            graded |= new
            _VERDICTS.update({pair: outcome for pair, outcome in new.items() if outcome.status == "ok"})
            for pair in list(_VERDICTS)[: max(0, len(_VERDICTS) - MAX_VERDICTS)]:
                _VERDICTS.pop(pair, None)
        return [graded[pair] for pair in pairs]


_VERDICTS: dict[Any, Outcome] = {}
MAX_VERDICTS = 100_000
"""Cached verdicts of (answer, gold) pairs, the newest."""


def _plain_verdict(answer: str | None, gold: str | None) -> bool | None:
    """Return the verdict if it needs no worker, else None."""
    if gold is None:
        return None
    return False if answer is None else same_plain(answer, gold)
