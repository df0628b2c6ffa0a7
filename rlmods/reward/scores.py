"""Calls of rewards, and conversion and validation of what they return."""

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from rlmods.errors import UserError
from rlmods.grading.pool import WorkerError
from rlmods.protocols import Reward
from rlmods.types import Response, Scores


class ScoreError(UserError, ValueError):
    """A reward returned something else than a number or None for each response."""


def run_reward(
    name: str, reward: Callable[[Sequence[Response]], Any], responses: Sequence[Response]
) -> Scores:
    """Return the scores of a reward called `name`.

    Raises:
        UserError: the reward raises one, or its worker processes exit during every call.
        RuntimeError: the reward raises another exception; the message names the reward, file and
        line.
        ScoreError: a result that is not one finite number or None for each response.
    """
    try:
        result = reward(responses)
    except UserError:
        raise
    except WorkerError as error:
        raise UserError(f"reward {name}: {error}") from error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise RuntimeError(
            f"reward {name} raised {type(error).__name__}: {error} "
            f"({frame.filename}:{frame.lineno})"
        ) from error
    return as_scores(result, len(responses), name)


def grade(reward: Reward, responses: Sequence[Response]) -> Scores:
    """Return the scores of a reward. Responses whose program failed (`SessionRecord.failure`) get
    its `failure_reward`, or are unscored, whatever the reward says about them.

    Raises:
        ScoreError: as `as_scores`.
    """
    scores = as_scores(reward(responses), len(responses), "reward")
    failed = [i for i, r in enumerate(responses) if r.session is not None and r.session.failure]
    if not failed:
        return scores
    values = list(scores.values)
    correct = None if scores.correct is None else list(scores.correct)
    tokens = None if scores.tokens is None else list(scores.tokens)
    for i in failed:
        session = responses[i].session
        values[i] = None if session is None else session.failure_reward
        if correct is not None:
            correct[i] = False
        if tokens is not None and responses[i].tokens:
            tokens[i] = [None] * (len(responses[i].tokens) - 1) + [values[i]]
    return replace(scores, values=values, correct=correct, tokens=tokens)


def as_scores(result: Any, num_responses: int, name: str) -> Scores:
    """Convert `result` (Scores, a tensor, or a sequence of numbers and None) to Scores with floats
    as values and token rewards.

    Raises ScoreError, naming the reward `name`, for a length other than `num_responses` and for a
    value that is not a finite number."""
    if isinstance(result, Tensor) or type(result).__module__ == "numpy":
        result = result.tolist()
    if not isinstance(result, Sequence) or isinstance(result, str):
        raise ScoreError(
            f"reward {name}: returned {type(result).__name__}; return a list with one number "
            "for each response"
        )
    values = _to_floats(result, name)  # also of Scores, a sequence of its values
    scores = replace(result, values=values) if isinstance(result, Scores) else Scores(values)
    if scores.tokens is not None:
        scores = replace(scores, tokens=[_to_floats(row, name) for row in scores.tokens])
    columns: dict[str, Sequence[Any] | None] = {
        "values": scores.values,
        "correct": scores.correct,
        "tokens": scores.tokens,
    }
    columns |= {f"column {column}": cells for column, cells in scores.columns.items()}
    columns |= {f"term {term}": cells for term, cells in scores.terms.items()}
    for field, cells in columns.items():
        if cells is not None and len(cells) != num_responses:
            raise ScoreError(
                f"reward {name}: {len(cells)} {field} for {num_responses} responses; return one "
                "for each, or None to abstain"
            )
    return scores


def _to_floats(values: Sequence[Any], name: str) -> list[float | None]:
    return [_to_float(value, row, name) for row, value in enumerate(values)]


def _to_float(value: Any, row: int, name: str) -> float | None:
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ScoreError(
            f"reward {name}: response {row} scored {value!r}, which is not a finite number; return "
            "a float, or None to abstain"
        )
    return number
