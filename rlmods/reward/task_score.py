"""Reward from the scorers of the reasoning-gym package."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

from rlmods.errors import UserError
from rlmods.grading.grader.extract import boxes, extract
from rlmods.grading.grader.style import MAX_CHARS
from rlmods.grading.pool import NOT_STARTED, Outcome, failure_counts, shared_pool
from rlmods.grading.reasoning_gym import MAX_CHARACTERS, PACKAGES, TARGET, has_form
from rlmods.grading.sandbox.run import START_TIMEOUT_S
from rlmods.grading.turns import without_thoughts
from rlmods.reward.code import check_walls
from rlmods.settings.bounds import Count, Positive, bounded
from rlmods.types import Response, Scores

_FENCED = re.compile(r"```[^\n`]*\n([^`]*)```")
_EMPHASIZED = re.compile(r"(\*{1,3}|_{1,3}|`)(?!\s).*(?<!\s)\1", re.DOTALL)


@dataclass(frozen=True)
@bounded("reward")
class TaskScore:
    """Score, 0 to 1, of a reasoning-gym task's own scorer; 0 for a response without an answer, and
    unless `partial` for an answer whose score is below `threshold`. Abstains for prompts of other
    data.

    The task and its entry are read from the prompt (`data=reasoning_gym` sets `meta["task"]` and
    `meta["entry"]`). Some scorers evaluate answers as code, so each answer is scored in a process
    of its own, confined by Landlock and seccomp and without environment variables
    (`rlmods.grading.sandbox`). An answer that cannot be scored gets 0 and is counted under
    `timeouts` or `errors`. Answers that were not begun within `batch_timeout_s` are not at fault:
    they abstain, and are counted as `not_started`.

    Raises:
        UserError: the package is missing, or this machine cannot confine the scorers.
    """

    threshold: float = 1.0
    """Smallest score that counts as `correct`. Some scorers give 0.99 and more to an answer with
    one wrong cell, letter or minute."""
    partial: bool = False
    """Pay scores below `threshold` too. Many scorers give a part of the score to any answer, or to
    one that contains the right one."""
    strict: bool = True
    """Refuse answers that do not have the form of an answer (`has_form`), where the package's
    scorer does not: NaN, words and other numbers around a number, code. Without it, an answer that
    is code can give itself any score."""
    timeout_s: Positive = 10.0
    """Time limit for one answer."""
    batch_timeout_s: Positive = 300.0
    """Time limit for all answers of one call. Those in progress then count as `timeouts`, those not
    begun abstain."""
    workers: Count = 2
    """Worker processes, started at the first use and kept."""
    memory_mb: Count = 2048
    """Address space of the process of one answer."""
    walls: Literal["full", "limits"] = "full"
    """`full`: Landlock, seccomp and resource limits. `limits`: resource limits only; an answer that
    is evaluated can then do anything your user can."""

    def __post_init__(self) -> None:
        if find_spec("reasoning_gym") is None:
            raise UserError(
                "TaskScore needs the reasoning-gym package: type pip install "
                "'rlmods[reasoning-gym]'"
            )
        check_walls(self, self.walls, "scorers, which evaluate answers as code,")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        answers = [_answer(response.text) for response in responses]
        values: list[float | None] = [None] * len(responses)
        correct: list[bool | None] = [None] * len(responses)
        calls: dict[int, tuple[str, str, Any]] = {}
        for row, response in enumerate(responses):
            meta = response.prompt.meta
            if "task" not in meta or "entry" not in meta:
                continue
            values[row] = 0.0
            correct[row] = False
            answer = answers[row]
            if answer is not None:
                call = (meta["task"], answer, meta["entry"])
                if not self.strict or has_form(*call):
                    calls[row] = call
        outcomes = self._score_distinct(calls)
        for row, outcome in outcomes.items():
            if outcome == NOT_STARTED:
                values[row] = correct[row] = None
            elif outcome.status == "ok":
                is_correct = outcome.value >= self.threshold
                correct[row] = is_correct
                values[row] = float(outcome.value) if self.partial or is_correct else 0.0
        begun = [outcome for outcome in outcomes.values() if outcome != NOT_STARTED]
        return Scores(
            values=values,
            correct=correct,
            counts=failure_counts(begun) | {"not_started": len(outcomes) - len(begun)},
            columns={"extracted": answers},
        )

    def _score_distinct(self, calls: Mapping[int, tuple[str, str, Any]]) -> dict[int, Outcome]:
        """Return the outcome of each row's call; equal answers to an entry are scored once. An
        error of the scorer's time limit is a timeout."""
        keys = {row: (task, answer, id(entry)) for row, (task, answer, entry) in calls.items()}
        distinct = {keys[row]: call for row, call in calls.items()}
        scored = dict(zip(distinct, self._score(list(distinct.values())), strict=True))
        for key, outcome in scored.items():
            if outcome.status == "error" and str(outcome.value).startswith(TimeoutError.__name__):
                scored[key] = Outcome("timeout")
        return {row: scored[key] for row, key in keys.items()}

    def _score(self, calls: Sequence[tuple[str, str, Any]]) -> list[Outcome]:
        limits = replace(
            PACKAGES,
            timeout_s=self.timeout_s,
            memory_mb=self.memory_mb,
            confined=self.walls != "limits",
        )
        pool = shared_pool(TARGET, self.workers, warmup=(limits,))
        return pool.map(
            [((limits, *call),) for call in calls],
            # the confined process itself is stopped after `timeout_s`
            timeout_s=self.timeout_s + START_TIMEOUT_S,
            batch_timeout_s=self.batch_timeout_s,
        )


def _answer(text: str) -> str | None:
    """Return the answer in `text` (`grader.extract`) as it is written: without the limit on its
    length for mathematics, and with characters such as `_`, which are emphasis there and cells of a
    board here."""
    answer = extract(text)
    turn = without_thoughts(text)
    if "<think>" in turn or boxes(turn):
        return answer
    start = turn.rfind("<answer>")
    end = turn.rfind("</answer>")
    tagged = 0 <= start < end
    written = (turn[start + len("<answer>") : end] if tagged else turn).strip()
    fenced = _FENCED.fullmatch(written)
    if fenced is not None:
        return fenced[1].strip() if len(written) <= MAX_CHARACTERS else None
    if tagged and MAX_CHARS < len(written) <= MAX_CHARACTERS:
        return written
    is_whole = written.strip("*_`").strip() == answer and not _EMPHASIZED.fullmatch(written)
    return written if is_whole else answer
