"""Verdicts from scores, shared by the judges that score one response at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rlmods.errors import UserError
from rlmods.protocols import Candidate
from rlmods.reward.scores import as_scores
from rlmods.types import Prompt, Response, as_response

Pair = tuple[Prompt, Candidate, Candidate]
"""A prompt and two responses to it."""


def compare_scores(
    pairs: Sequence[Pair],
    reward: Callable[[Sequence[Response]], Any],
    tie: float,
    counts: Counter[str],
) -> list[float | None]:
    """Return one verdict per pair, from the scores of its two responses.

    `reward` is called once; a response to a prompt object that is in several pairs is scored once.
    The reward's own counts, such as the number of answers that could not be graded, are added to
    `counts`.

    Raises:
        ValueError: a score that is neither a finite number nor None.
    """
    responses: dict[tuple[int, str, str], Response] = {}
    keys = []
    for prompt, *candidates in pairs:
        for candidate in candidates:
            response = as_response(prompt, candidate)
            key = (id(prompt), response.text, response.finish)
            responses.setdefault(key, response)
            keys.append(key)
    scores = as_scores(reward(list(responses.values())), len(responses), "judge")
    counts.update(scores.counts)
    values = dict(zip(responses, scores.values, strict=True))
    found = [values[key] for key in keys]
    return [verdict(a, b, tie) for a, b in zip(found[::2], found[1::2], strict=True)]


def verdict(first: float | None, second: float | None, tie: float) -> float | None:
    """Return 1.0 if the first score is higher, 0.0 if the second is, 0.5 if they differ by at most
    `tie`, None if one is missing."""
    if first is None or second is None:
        return None
    return 0.5 if abs(first - second) <= tie else float(first > second)


def check_tie(tie: float) -> None:
    """Check the setting `tie`.

    Raises:
        UserError: it is negative.
    """
    if not tie >= 0:
        raise UserError(f"judge.tie={tie}: must be 0 or more")
