"""Rows of the sample log.

They may come from others: values of other types than `rlmods.training.metrics.sample_row` writes
are left out."""

from __future__ import annotations

import math
from typing import Any

Row = dict[str, Any]
OF_DECISION = ("position", "entropy", "initial_entropy", "probability")


def number(value: Any) -> float | None:
    """Return a finite number as a float, anything else as None."""
    if type(value) not in (int, float):
        return None
    try:
        x = float(value)
    except OverflowError:
        return None
    return x if math.isfinite(x) else None


def checked(row: Row) -> Row | None:
    """Return a row with the types that readers rely on, None if it is no response."""
    tokens = row.get("tokens")
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < 2**31 for token in tokens
    ):
        return None
    row = row | {key: number(row.get(key)) for key in ("reward", "advantage")}
    row |= {key: str(row.get(key)) for key in ("id", "response", "finish")}
    if isinstance(branch := row.get("branch"), dict):
        decisions, runs = branch.get("decisions"), branch.get("segments")
        row["branch"] = branch | {
            "decisions": [d for d in decisions if _is_decision(d)]
            if isinstance(decisions, list)
            else None,
            "segments": [run for run in runs if _is_segment(run)]
            if isinstance(runs, list)
            else None,
        }
    return row


def _is_decision(value: Any) -> bool:
    return isinstance(value, dict) and all(
        number(value.get(name)) is not None for name in OF_DECISION
    )


def _is_segment(run: Any) -> bool:
    return isinstance(run, list) and len(run) == 3 and all(number(x) is not None for x in run)
