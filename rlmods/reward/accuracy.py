"""Whether the final answer equals the gold one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlmods.reward.grader import extract, extract_gold, same_plain, verify
from rlmods.reward.pool import Outcome, failures, shared
from rlmods.types import Response, Scores, UserError

__all__ = ["Accuracy", "verify"]


@dataclass(frozen=True)
class Accuracy:
    """`correct` where the answer that the response gives (`extract`) equals `prompt.answer` (`compare`), else `wrong`. A prompt without a
    gold answer abstains.

    Plain numbers and words are compared on the spot, everything else in worker processes under a deadline. An answer that cannot be graded
    scores `wrong` and is counted: `timeouts`, `errors`. Raises RuntimeError if no worker process can be started.
    """

    correct: float = 1.0
    wrong: float = 0.0
    timeout_s: float = 5.0
    """For one answer. Answers take milliseconds: this is for a busy machine."""
    batch_timeout_s: float = 300.0
    """For all the answers of one call. What is not graded by then counts under `timeouts`."""
    workers: int = 2
    """Processes, started when first needed and kept. Parts with equal counts share them."""

    needs_answer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("timeout_s", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(f"Accuracy: {name}={getattr(self, name)} is not positive")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        answers = [extract(response.text) for response in responses]
        golds = [None if response.prompt.answer is None else extract_gold(response.prompt.answer) for response in responses]
        verdicts = [_at_once(answer, gold) for answer, gold in zip(answers, golds, strict=True)]
        rest = [row for row, gold in enumerate(golds) if verdicts[row] is None and gold is not None]
        outcomes = self._grade([(answers[row], golds[row]) for row in rest])
        for row, outcome in zip(rest, outcomes, strict=True):
            verdicts[row] = outcome.status == "ok" and outcome.value is True
        return Scores(
            values=[None if verdict is None else float(self.correct if verdict else self.wrong) for verdict in verdicts],
            correct=verdicts,
            counts=failures(outcomes),
            columns={"extracted": answers},
        )

    def _grade(self, pairs: list[tuple[str | None, str | None]]) -> list[Outcome]:
        """Each different pair once; verdicts are kept, those that never came are not."""
        different = list(dict.fromkeys(pairs))
        known = {pair: kept for pair in different if (kept := _VERDICTS.get(pair)) is not None}
        if asked := [pair for pair in different if pair not in known]:
            pool = shared("rlmods.reward.grader:same_answer", self.workers, os.getpid())
            outcomes = pool.map(asked, timeout_s=self.timeout_s, batch_timeout_s=self.batch_timeout_s)
            found = dict(zip(asked, outcomes, strict=True))
            known |= found
            _VERDICTS.update({pair: outcome for pair, outcome in found.items() if outcome.status == "ok"})
            for pair in list(_VERDICTS)[: max(0, len(_VERDICTS) - MAX_VERDICTS)]:
                _VERDICTS.pop(pair, None)
        return [known[pair] for pair in pairs]


_VERDICTS: dict[Any, Outcome] = {}
MAX_VERDICTS = 100_000
"""Of (answer, gold) that are kept, the newest."""


def _at_once(answer: str | None, gold: str | None) -> bool | None:
    """The verdict that needs no worker, None where there is none (yet)."""
    if gold is None:
        return None
    return False if answer is None else same_plain(answer, gold)
