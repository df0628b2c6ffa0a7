"""Validation of the preference annotations of a row, and conversion to the form stored in
`meta`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlmods.data.schema import check_messages, check_text, type_name
from rlmods.errors import UserError

STEP_LABELS = {"+": 1.0, "-": 0.0}
ROLES = {"Human": "user", "Assistant": "assistant"}
ASSISTANT_MARK = "\n\nAssistant:"
"""Start of an assistant turn in a transcript."""
EXAMPLE = r'"\n\nHuman: ...\n\nAssistant: ..."'
Context = str | list[dict[str, str]]
"""Prompt that comes with a response: a string, or chat messages."""


class ParsedResponse(NamedTuple):
    """A response and the prompt that its column holds with it, if any."""

    context: Context | None
    text: str
    finished: bool


class RankedValue(NamedTuple):
    """The value of a response in the row, not yet parsed, with its rank."""

    value: Any
    column: str
    rank: float
    """Lower is better."""


def parse_response(value: Any, location: str, column: str) -> ParsedResponse:
    """Parse a string, an object with `text` and `finish`, or chat messages that end with the
    assistant's. Raises: UserError."""
    if isinstance(value, Mapping):
        if "text" not in value:
            keys = f"found an object with {', '.join(value)}"
            raise UserError(
                f'{location}: column "{column}" must hold texts, or objects with "text"; {keys}'
            )
        return ParsedResponse(
            None, check_text(value["text"], location, column), value.get("finish") != "length"
        )
    if not isinstance(value, list):
        return ParsedResponse(None, check_text(value, location, column), True)
    *context, last = check_messages(value, location, column)
    if last["role"] != "assistant":
        raise UserError(
            f'{location}: column "{column}" must end with an assistant turn, found the role '
            f"{last['role']}"
        )
    return ParsedResponse(context or None, last["content"], True)


def parse_transcript(value: Any, location: str, column: str, *, chat: bool) -> ParsedResponse:
    """Parse a dialogue in one string, whose last reply is the response. White space around it is
    removed only if `chat`. Raises: UserError."""
    context, mark, reply = check_text(value, location, column).rpartition(ASSISTANT_MARK)
    if not mark or "\n\nHuman:" in reply:
        raise UserError(
            f'{location}: column "{column}" must hold transcripts such as {EXAMPLE}, the reply last'
        )
    check_text(reply, location, column)
    if not chat:
        return ParsedResponse(context + mark, reply, True)
    opening, *parts = re.split(r"\n\n(Human|Assistant):", context)
    system = [{"role": "system", "content": opening.strip()}] if opening.strip() else []
    turns = [
        {"role": ROLES[speaker], "content": content.strip()}
        for speaker, content in zip(parts[::2], parts[1::2], strict=True)
    ]
    return ParsedResponse(system + turns, reply.strip(), True)


def ranked_values(
    values: Mapping[str, Any], columns: Mapping[str, str], location: str
) -> list[RankedValue]:
    """Return the ranked responses of a row, given by field, without those whose rank is null.
    Raises: UserError."""
    if "chosen" in values:
        return [
            RankedValue(values[field], columns[field], rank)
            for rank, field in enumerate(("chosen", "rejected"))
        ]
    if "label" in values:
        label = check_label(values["label"], location, columns["label"])
        return [RankedValue(values["response"], columns["response"], 1 - label)]
    candidates = check_list(values["candidates"], location, columns["candidates"])
    field = next((field for field in ("ranks", "scores") if field in values), None)
    if field is None:
        return [
            RankedValue(value, columns["candidates"], rank) for rank, value in enumerate(candidates)
        ]
    ranks = values[field] if values[field] is not None else [None] * len(candidates)
    ranks = check_list(
        ranks, location, columns[field], length=len(candidates), length_of=columns["candidates"]
    )
    sign = 1 if field == "ranks" else -1
    pairs = zip(candidates, ranks, strict=True)
    return [
        RankedValue(
            value, columns["candidates"], sign * check_number(rank, location, columns[field])
        )
        for value, rank in pairs
        if rank is not None
    ]


def preference_meta(
    responses: Sequence[ParsedResponse], ranked: Sequence[RankedValue], location: str
) -> dict[str, Any]:
    """Return candidates and their ranks, 0 best; a single response keeps its rank. Raises:
    UserError for a text with two ranks."""
    order = sorted({value.rank for value in ranked} | ({0.0} if len(ranked) == 1 else set()))
    ranks = tuple(order.index(value.rank) for value in ranked)
    seen: dict[tuple[str, bool], int] = {}
    for response, value, rank in zip(responses, ranked, ranks, strict=True):
        if seen.setdefault((response.text, response.finished), rank) != rank:
            advice = "correct the row, or type data.skip_invalid=true to leave it out"
            raise UserError(
                f'{location}: column "{value.column}" repeats a response at another rank: {advice}'
            )
    best = [
        response.text
        for response, rank in zip(responses, ranks, strict=True)
        if rank == 0 and response.finished
    ]
    meta = {
        "candidates": tuple(x.text for x in responses),
        "ranks": ranks,
        "finished": tuple(x.finished for x in responses),
    }
    return {**meta, **({"response": best[0]} if best else {})}


def step_meta(
    values: Mapping[str, Any], columns: Mapping[str, str], location: str, step_end: str
) -> dict[str, Any]:
    """Return the steps, each but the last ending in `step_end`, and their labels from 0 to 1.
    Raises: UserError."""
    column, label_column = columns["steps"], columns["step_labels"]
    steps = [
        check_text(step, location, column) for step in check_list(values["steps"], location, column)
    ]
    if not steps:
        raise UserError(f'{location}: column "{column}" is empty')
    labels = check_list(
        values["step_labels"], location, label_column, length=len(steps), length_of=column
    )
    ended = [step if step.endswith(step_end) else step + step_end for step in steps[:-1]]
    return {
        "steps": (*ended, steps[-1]),
        "step_labels": tuple(check_step_label(value, location, label_column) for value in labels),
    }


def check_list(
    value: Any, location: str, column: str, *, length: int | None = None, length_of: str = ""
) -> Sequence[Any]:
    """Return the value. Raises: UserError unless it is a list, of the given length (that of column
    `length_of`)."""
    if not isinstance(value, list):
        raise UserError(f'{location}: column "{column}" must hold a list, found {type_name(value)}')
    if length is not None and len(value) != length:
        raise UserError(
            f'{location}: column "{column}" has {len(value)} entries, and column '
            f'"{length_of}" has {length}'
        )
    return value


def check_number(value: Any, location: str, column: str) -> float:
    """Return the value. Raises: UserError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(
            f'{location}: column "{column}" must hold numbers, found {type_name(value)}'
        )
    if not math.isfinite(value):
        raise UserError(f'{location}: column "{column}" must hold finite numbers, found {value}')
    return value


def check_step_label(value: Any, location: str, column: str) -> float:
    """Return a step label as a float. Raises: UserError unless it is a number from 0 to 1, true,
    false, "+" or "-"."""
    if isinstance(value, str) and value in STEP_LABELS:
        return STEP_LABELS[value]
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(
            f'{location}: column "{column}" must hold numbers from 0 to 1, true or false, "+" '
            f'or "-"; found {describe(value)}'
        )
    return float(value)


def check_label(value: Any, location: str, column: str) -> bool:
    """Return the label of a response. Raises: UserError unless it is true or 1, false or 0."""
    if not isinstance(value, int | float) or value not in (0, 1):
        raise UserError(
            f'{location}: column "{column}" must hold true or false, or 1 or 0; found '
            f"{describe(value)}"
        )
    return bool(value)


def describe(value: Any) -> str:
    """Return a short value's repr, else its type in words."""
    return (
        repr(value)
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) < 20)
        else type_name(value)
    )
