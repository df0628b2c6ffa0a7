"""The side of `Isolated` that runs in the worker. Starts without torch; a reward imports what it needs."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

FIELDS = ("text", "tokens", "finish")
ABOUT = ("id", "text", "messages", "answer", "meta")


def record(response: Any) -> dict[str, Any]:
    """What a worker is told of a response."""
    told = {name: getattr(response, name) for name in FIELDS}
    return told | {"tokens": list(response.tokens), "prompt": {name: getattr(response.prompt, name) for name in ABOUT}}


def answer(message: bytes | dict[str, Any]) -> dict[str, Any] | None:
    """Value, correctness and counts of one response; nothing for the reward itself, pickled, which comes first.

    Raises:
        ValueError: not one score for the one response.
    """
    if isinstance(message, bytes):
        _REWARD[:] = [pickle.loads(message)]
        return None
    response = SimpleNamespace(**message | {"prompt": SimpleNamespace(**message["prompt"])})
    result = _REWARD[0]([response])
    values = list(getattr(result, "values", result))
    if len(values) != 1:
        raise ValueError(f"{len(values)} scores for 1 response")
    correct, counts = getattr(result, "correct", None), getattr(result, "counts", None)
    value = None if values[0] is None else float(values[0])
    known = None if correct is None or correct[0] is None else bool(correct[0])
    columns = {name: column[0] for name, column in getattr(result, "columns", {}).items()}
    told = {"value": value, "correct": known, "counts": dict(counts or {}), "columns": columns}
    return told | {"monitored": bool(getattr(result, "monitored", False))}


_REWARD: list[Any] = []
