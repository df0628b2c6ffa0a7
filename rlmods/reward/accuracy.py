"""Reward for a final answer that equals the gold answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlmods.grading.grader import (
    Rules,
    as_asked,
    extract,
    extract_gold,
    is_gold,
    is_refused,
    same_plain,
    verify,
)
from rlmods.grading.pool import Outcome, failure_counts, shared_pool
from rlmods.needs import RewardNeeds
from rlmods.settings.bounds import Count, Positive, bounded
from rlmods.types import Prompt, Response, Scores

__all__ = ["Accuracy", "verify"]


@dataclass(frozen=True)
@bounded("reward")
class Accuracy:
    """Reward `correct` if the final answer of the response (`extract`) equals `prompt.answer`
    (`compare`), else `wrong`. Abstains without a gold answer, or with one that no answer can equal
    (NaN).

    An expression of the right value that occurs in the question, or leaves the work that it asks
    for, is wrong, unless the gold is written so. Plain numbers and words are compared in this
    process, everything else in worker processes with a deadline. An answer that cannot be graded
    scores `wrong` and is counted: `timeouts`, `errors`. So are the answers that only sympy finds
    right (`sympy_decided`), or not in time (`sympy_timeouts`). Raises RuntimeError if no worker
    process can be started."""

    correct: float = 1.0
    wrong: float = 0.0
    timeout_s: Positive = 5.0
    """Timeout for one answer. Grading takes milliseconds; this allows for a busy machine."""
    batch_timeout_s: Positive = 300.0
    """Timeout for all answers of one call. Those not graded by then count as `timeouts`."""
    workers: Count = 2
    """Number of processes, started when first needed and kept. Rewards with equal numbers share
    them."""
    rules: Rules = field(default_factory=Rules)
    """Which unusual forms of a right answer are accepted; none of them by default."""

    needs: ClassVar[RewardNeeds] = RewardNeeds(answer=True)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        answers = [extract(response.text) for response in responses]
        questions = [_question(response.prompt) for response in responses]
        verdicts: list[bool | None] = [None] * len(responses)
        pairs: dict[int, tuple[str, str]] = {}
        for row, answer in enumerate(answers):
            gold = _gold(responses[row].prompt)
            if gold is None:
                continue
            verdicts[row] = False
            if answer is not None:
                pairs[row] = (as_asked(answer, gold, questions[row]), gold)
                verdicts[row] = same_plain(*pairs[row], self.rules)
        pending = {row: pair for row, pair in pairs.items() if verdicts[row] is None}
        outcomes = self._grade(list(pending.values()))
        for row, outcome in zip(pending, outcomes, strict=True):
            verdicts[row] = outcome.status == "ok" and outcome.value in (True, "sympy")
        for row, pair in pairs.items():
            if verdicts[row]:
                verdicts[row] = not is_refused(*pair, self.rules, questions[row])
        paid = {True: float(self.correct), False: float(self.wrong), None: None}
        graded = [outcome.value for outcome in outcomes]
        counts = {
            "sympy_decided": graded.count("sympy"),
            "sympy_timeouts": graded.count("sympy timeout"),
        }
        return Scores(
            list(map(paid.get, verdicts)),
            correct=verdicts,
            counts=failure_counts(outcomes) | counts,
            columns={"extracted": answers},
        )

    def _grade(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Grade each distinct pair once. Verdicts are cached; timeouts and errors are not."""
        calls = [(*pair, self.rules) for pair in pairs]
        graded = {call: _VERDICTS[call] for call in calls if call in _VERDICTS}
        missing = [call for call in dict.fromkeys(calls) if call not in graded]
        if missing:
            pool = shared_pool("rlmods.grading.grader.algebra:graded", self.workers)
            outcomes = pool.map(
                missing, timeout_s=self.timeout_s, batch_timeout_s=self.batch_timeout_s
            )
            for call, outcome in zip(missing, outcomes, strict=True):
                graded[call] = outcome
                if outcome.status == "ok":
                    _VERDICTS[call] = outcome
            for call in list(_VERDICTS)[: max(0, len(_VERDICTS) - MAX_VERDICTS)]:
                _VERDICTS.pop(call, None)
        return list(map(graded.__getitem__, calls))


_VERDICTS: dict[Any, Outcome] = {}
MAX_VERDICTS = 100_000
"""Cached verdicts of (answer, gold, rules), the newest."""


def _gold(prompt: Prompt) -> str | None:
    gold = None if prompt.answer is None else extract_gold(str(prompt.answer))
    return gold if gold is not None and is_gold(gold) else None


def _question(prompt: Prompt) -> str:
    messages = prompt.messages or [{"content": prompt.text or ""}]
    return "\n".join(str(message.get("content", "")) for message in messages)
