"""Conversion and validation of the results of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from rlmods.errors import UserError
from rlmods.types import Scores


class ScoreError(UserError, ValueError):
    """A reward returned something else than a number or None for each response."""


def as_scores(result: Any, num_responses: int, name: str) -> Scores:
    """Convert `result` (Scores, a tensor, or a sequence of numbers and None) to Scores with floats
    as values and token rewards.

    Raises ScoreError, naming the reward `name`, for a length other than `num_responses` and for a
    value that is not a finite number."""
    if isinstance(result, Scores):
        scores = replace(result, values=_to_floats(result.values, name))
    else:
        scores = Scores(_to_floats(_to_sequence(result, name), name))
    if scores.tokens is not None:
        scores = replace(scores, tokens=[_to_floats([*row], name) for row in scores.tokens])
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


def _to_sequence(result: Any, name: str) -> Sequence[Any]:
    if isinstance(result, Tensor) or type(result).__module__ == "numpy":
        result = result.tolist()
    if not isinstance(result, Sequence) or isinstance(result, str):
        raise ScoreError(
            f"reward {name}: returned {type(result).__name__}; return a list with one number "
            "for each response"
        )
    return result


def _to_float(value: Any, row: int, name: str) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ScoreError(
            f"reward {name}: response {row} scored {value!r}, which is not a number; return a "
            "float, or None to abstain"
        ) from None
    if not math.isfinite(number):
        raise ScoreError(
            f"reward {name}: response {row} scored {number}; return a finite number, or None "
            "to abstain"
        )
    return number
