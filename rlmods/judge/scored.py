"""Verdicts out of scores: what judges that grade one response at a time have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rlmods.reward.scores import as_scores
from rlmods.types import Prompt, Response, UserError

Pair = tuple[Prompt, str, str]
"""A prompt and two responses to it."""


def by_score(pairs: Sequence[Pair], reward: Callable[[Sequence[Response]], Any], tie: float, counts: Counter[str]) -> list[float | None]:
    """A verdict a pair. `reward` is called once, with each response to a prompt object once, however many pairs it is in. What it counts,
    such as answers that could not be graded, is added to `counts`.

    Raises:
        ValueError: a score that is neither a finite number nor None.
    """
    responses = {(id(prompt), text): Response(prompt, text=text) for prompt, *texts in pairs for text in texts}
    found = as_scores(reward(list(responses.values())), len(responses), "judge")
    counts.update(found.counts)
    scores = dict(zip(responses, found.values, strict=True))
    return [verdict(scores[id(prompt), first], scores[id(prompt), second], tie) for prompt, first, second in pairs]


def verdict(first: float | None, second: float | None, tie: float) -> float | None:
    """1.0 where the first score is higher, 0.0 where the second is, 0.5 where they are at most `tie` apart, None where one is missing."""
    if first is None or second is None:
        return None
    return 0.5 if abs(first - second) <= tie else float(first > second)


def check_tie(tie: float) -> None:
    """
    Raises:
        UserError: it is negative.
    """
    if not tie >= 0:
        raise UserError(f"judge.tie={tie}: must be 0 or more")
