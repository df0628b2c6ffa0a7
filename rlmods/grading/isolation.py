"""Worker side of `Isolated`. Imports no torch; a reward imports what it needs."""

import math
import pickle
from types import SimpleNamespace
from typing import Any

RESPONSE_FIELDS = ("text", "tokens", "finish", "num_sampled", "longest_turn")
PROMPT_FIELDS = ("id", "text", "messages", "answer", "meta", "source")


def to_message(response: Any) -> dict[str, Any]:
    """Return the fields of a response that are sent to a worker."""
    message = {name: getattr(response, name) for name in RESPONSE_FIELDS}
    return message | {
        "tokens": list(response.tokens),
        "prompt": {name: getattr(response.prompt, name) for name in PROMPT_FIELDS},
    }


def answer(message: bytes | dict[str, Any]) -> dict[str, Any] | None:
    """Return value, correctness, counts and columns of one response. The first message is the
    pickled reward: return None.

    Raises:
        ValueError: the reward did not return exactly one score, or one that is not a finite number.
    """
    if isinstance(message, bytes):
        _REWARD[:] = [pickle.loads(message)]
        return None
    response = SimpleNamespace(**message | {"prompt": SimpleNamespace(**message["prompt"])})
    result = _REWARD[0]([response])
    scores: dict[str, Any] = {"correct": None, "counts": {}, "columns": {}, "monitored": False}
    values = result
    if hasattr(result, "monitored"):  # `Scores`
        values = result.values
        scores["counts"] = {name: int(count) for name, count in result.counts.items()}
        scores["columns"] = {name: column[0] for name, column in result.columns.items()}
        scores["monitored"] = result.monitored
        if result.correct is not None and result.correct[0] is not None:
            scores["correct"] = bool(result.correct[0])
    if len(values) != 1:
        raise ValueError(f"{len(values)} scores for 1 response")
    value = None if values[0] is None else float(values[0])
    if value is not None and not math.isfinite(value):
        raise ValueError(f"the score is {value}: return a finite number, or None to abstain")
    return scores | {"value": value}


_REWARD: list[Any] = []
