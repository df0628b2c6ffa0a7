"""Validation of the preference annotations of a row, and conversion to the form stored in
`meta`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlmods.data.schema import check_list, check_messages, check_number, check_text
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
    finished: bool = True


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
            raise UserError(
                f'{location}: column "{column}" must hold texts, or objects with "text"; found an '
                f"object with {', '.join(value)}"
            )
        text = check_text(value["text"], location, column)
        return ParsedResponse(None, text, value.get("finish") != "length")
    if not isinstance(value, list):
        return ParsedResponse(None, check_text(value, location, column))
    *context, last = check_messages(value, location, column)
    if last["role"] != "assistant":
        raise UserError(
            f'{location}: column "{column}" must end with an assistant turn, found the role '
            f"{last['role']}"
        )
    return ParsedResponse(context or None, last["content"])


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
        return ParsedResponse(context + mark, reply)
    opening, *parts = re.split(r"\n\n(Human|Assistant):", context)
    turns = []
    if opening.strip():
        turns.append({"role": "system", "content": opening.strip()})
    for speaker, content in zip(parts[::2], parts[1::2], strict=True):
        turns.append({"role": ROLES[speaker], "content": content.strip()})
    return ParsedResponse(turns, reply.strip())


def ranked_values(
    values: Mapping[str, Any], columns: Mapping[str, str], location: str
) -> list[RankedValue]:
    """Return the ranked responses of a row, given by field, without those whose rank is null.
    Raises: UserError."""
    if "chosen" in values:
        return [
            RankedValue(values["chosen"], columns["chosen"], 0),
            RankedValue(values["rejected"], columns["rejected"], 1),
        ]
    if "label" in values:
        is_good = check_label(values["label"], location, columns["label"])
        return [RankedValue(values["response"], columns["response"], 0 if is_good else 1)]
    column = columns["candidates"]
    candidates = check_list(values["candidates"], location, column)
    ranks: Sequence[Any] = range(len(candidates))
    sign = 1
    for field in ("ranks", "scores"):
        if field in values:
            ranks = values[field]
            if ranks is None:
                return []
            check_list(ranks, location, columns[field], candidates, column)
            sign = 1 if field == "ranks" else -1
            break
    ranked = []
    for value, rank in zip(candidates, ranks, strict=True):
        if rank is not None:
            number = check_number(rank, location, columns.get(field, column))
            ranked.append(RankedValue(value, column, sign * number))
    return ranked


def preference_meta(
    responses: Sequence[ParsedResponse], ranked: Sequence[RankedValue], location: str
) -> dict[str, Any]:
    """Return candidates and their ranks, 0 best; a single response keeps its rank. Raises:
    UserError for a text with two ranks."""
    order = {value.rank for value in ranked}
    if len(ranked) == 1:
        order.add(0.0)
    position = {rank: i for i, rank in enumerate(sorted(order))}
    ranks = tuple(position[value.rank] for value in ranked)
    meta: dict[str, Any] = {
        "candidates": tuple(response.text for response in responses),
        "ranks": ranks,
        "finished": tuple(response.finished for response in responses),
    }
    seen: dict[tuple[str, bool], int] = {}
    for response, value, rank in zip(responses, ranked, ranks, strict=True):
        if seen.setdefault((response.text, response.finished), rank) != rank:
            advice = "correct the row, or type data.skip_invalid=true to leave it out"
            raise UserError(
                f'{location}: column "{value.column}" repeats a response at another rank: {advice}'
            )
        if rank == 0 and response.finished:
            meta.setdefault("response", response.text)
    return meta


def step_meta(
    values: Mapping[str, Any], columns: Mapping[str, str], location: str, step_end: str
) -> dict[str, Any]:
    """Return the steps, each but the last ending in `step_end`, and their labels from 0 to 1.
    Raises: UserError."""
    column = columns["steps"]
    steps = list(check_list(values["steps"], location, column))
    if not steps:
        raise UserError(f'{location}: column "{column}" is empty')
    for i, step in enumerate(steps):
        check_text(step, location, column)
        if i + 1 < len(steps) and not step.endswith(step_end):
            steps[i] = step + step_end
    label_column = columns["step_labels"]
    labels = check_list(values["step_labels"], location, label_column, steps, column)
    return {
        "steps": tuple(steps),
        "step_labels": tuple(check_step_label(value, location, label_column) for value in labels),
    }


def check_step_label(value: Any, location: str, column: str) -> float:
    """Return a step label as a float. Raises: UserError unless it is a number from 0 to 1, true,
    false, "+" or "-"."""
    if isinstance(value, str) and value in STEP_LABELS:
        return STEP_LABELS[value]
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(
            f'{location}: column "{column}" must hold numbers from 0 to 1, true or false, "+" '
            f'or "-"; found {value!r:.40}'
        )
    return float(value)


def check_label(value: Any, location: str, column: str) -> bool:
    """Return the label of a response. Raises: UserError unless it is true or 1, false or 0."""
    if not isinstance(value, int | float) or value not in (0, 1):
        raise UserError(
            f'{location}: column "{column}" must hold true or false, or 1 or 0; found {value!r:.40}'
        )
    return bool(value)
