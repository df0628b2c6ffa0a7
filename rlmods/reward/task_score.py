"""Reward from the scorers of the reasoning-gym package."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from rlmods.errors import UserError
from rlmods.grading.answer_form import has_form
from rlmods.grading.grader.extract import boxes, extract
from rlmods.grading.grader.style import MAX_CHARS
from rlmods.grading.pool import NOT_STARTED, Outcome, Pool, failure_counts, shared_pool
from rlmods.grading.reasoning_gym_scorer import TARGET
from rlmods.grading.sandbox.expressions import MAX_CHARACTERS
from rlmods.grading.sandbox.run import START_TIMEOUT_S
from rlmods.grading.sandbox.confinement import missing_support
from rlmods.grading.turns import without_thoughts
from rlmods.types import Response, Scores

_FENCED = re.compile(r"```[^\n`]*\n([^`]*)```")
_EMPHASIZED = re.compile(r"(\*{1,3}|_{1,3}|`)(?!\s).*(?<!\s)\1", re.DOTALL)


@dataclass(frozen=True)
class TaskScore:
    """Score, 0 to 1, of a reasoning-gym task's own scorer; 0 for a response without an answer, and
    unless `partial` for an answer whose score is below `threshold`. Abstains for prompts of other
    data.

    The task and its entry are read from the prompt (`data=reasoning_gym` sets `meta["task"]` and
    `meta["entry"]`). Scorers evaluate answers as code, so each answer is scored in a process of its
    own, confined by Landlock and seccomp and without environment variables
    (`rlmods.grading.sandbox`), and evaluation is limited to arithmetic
    (`rlmods.grading.sandbox.expressions`). An answer that cannot be scored gets 0 and is counted
    under `timeouts` or `errors`. Answers that were not begun within `batch_timeout_s` are not at
    fault: they abstain, and are counted as `not_started`.

    Raises:
        UserError: the package is missing, settings are out of range, or this machine cannot confine
        the scorers.
    """

    threshold: float = 1.0
    """Smallest score that counts as `correct`. Some scorers give 0.99 and more to an answer with
    one wrong cell, letter or minute."""
    partial: bool = False
    """Pay scores below `threshold` too. Many scorers give a part of the score to any answer, or to
    one that contains the right one."""
    strict: bool = True
    """Refuse answers that do not have the form of an answer, where the package's scorer does not
    (`answer_form`): NaN, words around the right answer, functions and other numbers in
    `countdown`."""
    timeout_s: float = 10.0
    """Time limit for one answer."""
    batch_timeout_s: float = 300.0
    """Time limit for all answers of one call. Those in progress then count as `timeouts`, those not
    begun abstain."""
    workers: int = 2
    """Worker processes, started at the first use and kept."""
    memory_mb: int = 2048
    """Address space of the process of one answer."""
    walls: Literal["full", "limits"] = "full"
    """`full`: Landlock, seccomp and resource limits. `limits`: resource limits only; should an
    answer get past the restriction to arithmetic, it can do anything your user can."""

    def __post_init__(self) -> None:
        if find_spec("reasoning_gym") is None:
            raise UserError(
                "TaskScore needs the reasoning-gym package: type pip install "
                "'rlmods[reasoning_gym]'"
            )
        for name in ("timeout_s", "batch_timeout_s", "workers", "memory_mb"):
            if not getattr(self, name) > 0:
                raise UserError(f"TaskScore: {name}={getattr(self, name)} is not positive")
        if self.walls not in ("full", "limits"):
            raise UserError(f"TaskScore: walls={self.walls!r}: type walls=full or walls=limits")
        if self.walls == "full" and (reason := missing_support()) is not None:
            raise UserError(
                f"TaskScore: {reason}, so scorers, which evaluate answers as code, cannot be "
                "confined: run in a container of your own and "
                "type reward.walls=limits"
            )

    def __call__(self, responses: Sequence[Response]) -> Scores:
        answers = [_answer(response.text) for response in responses]
        rows = [
            row
            for row, response in enumerate(responses)
            if {"task", "entry"} <= set(response.prompt.meta)
        ]
        limits = (
            ("timeout_s", self.timeout_s),
            ("memory_mb", self.memory_mb),
            ("confined", self.walls == "full"),
        )
        calls = {
            row: _call(responses[row].prompt.meta, answer)
            for row in rows
            if (answer := answers[row]) is not None
        }
        calls = {row: call for row, call in calls.items() if not self.strict or has_form(*call)}
        keys = {row: (task, answer, id(entry)) for row, (task, answer, entry) in calls.items()}
        distinct = {key: calls[row] for row, key in keys.items()}
        pool = shared_pool(TARGET, self.workers, os.getpid(), warmup=(limits,))
        scored = self._score(pool, [((limits, *call),) for call in distinct.values()])
        outcomes = dict(zip(distinct, map(_as_timeout, scored), strict=True))
        values: list[float | None] = [None] * len(responses)
        correct: list[bool | None] = [None] * len(responses)
        for row in rows:
            values[row], correct[row] = 0.0, False
        for row, key in keys.items():
            if outcomes[key] == NOT_STARTED:
                values[row] = correct[row] = None
                continue
            score = float(outcomes[key].value) if outcomes[key].status == "ok" else 0.0
            correct[row] = score >= self.threshold
            values[row] = score if self.partial or correct[row] else 0.0
        found = [outcomes[key] for key in keys.values()]
        return Scores(
            values=values,
            correct=correct,
            counts=failure_counts([outcome for outcome in found if outcome != NOT_STARTED])
            | {"not_started": found.count(NOT_STARTED)},
            columns={"extracted": answers},
        )

    def _score(self, pool: Pool, calls: Sequence[Any]) -> list[Outcome]:
        # the confined process itself is stopped after `timeout_s`
        timeout_s = self.timeout_s + START_TIMEOUT_S
        return (
            pool.map(calls, timeout_s=timeout_s, batch_timeout_s=self.batch_timeout_s)
            if calls
            else []
        )


def _answer(text: str) -> str | None:
    """Return the answer in `text` (`grader.extract`) as it is written: without the limit on its
    length for mathematics, and with characters such as `_`, which are emphasis there and cells of a
    board here."""
    answer, turn = extract(text), without_thoughts(text)
    if "<think>" in turn or boxes(turn):
        return answer
    start, end = turn.rfind("<answer>"), turn.rfind("</answer>")
    written = (turn[start + len("<answer>") : end] if 0 <= start < end else turn).strip()
    if (fenced := _FENCED.fullmatch(written)) is not None:
        return fenced[1].strip() if len(written) <= MAX_CHARACTERS else None
    if 0 <= start < end and MAX_CHARS < len(written) <= MAX_CHARACTERS:
        return written
    return (
        written
        if written.strip("*_`").strip() == answer and not _EMPHASIZED.fullmatch(written)
        else answer
    )


def _as_timeout(outcome: Outcome) -> Outcome:
    return (
        Outcome("timeout")
        if outcome.status == "error" and str(outcome.value).startswith(TimeoutError.__name__)
        else outcome
    )


def _call(meta: Mapping[str, Any], answer: str) -> tuple[str, str, Any]:
    return meta["task"], answer, meta["entry"]
