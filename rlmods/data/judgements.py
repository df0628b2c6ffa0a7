"""What a row says about responses, checked and in the one form that `meta` holds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlmods.data.schema import kind, messages, text
from rlmods.types import UserError

LABELS = {"+": 1.0, "-": 0.0}
ROLES = {"Human": "user", "Assistant": "assistant"}
REPLY = "\n\nAssistant:"
"""Opens the last turn of a transcript."""
EXAMPLE = r'"\n\nHuman: ...\n\nAssistant: ..."'
Before = str | list[dict[str, str]]
"""A prompt that a response brings along: a text, or chat turns."""


class Said(NamedTuple):
    """A response."""

    before: Before | None
    text: str
    finished: bool


class Judged(NamedTuple):
    """A response as the row has it."""

    value: Any
    name: str
    """Of its column."""
    rank: float
    """Lower is better."""


def said(value: Any, where: str, name: str) -> Said:
    """A text, an object with `text` and `finish`, or chat turns of which the last is the assistant's. Raises: UserError."""
    if isinstance(value, Mapping):
        if "text" not in value:
            raise UserError(f'{where}: column "{name}" must hold texts, or objects with "text"; found an object with {", ".join(value)}')
        return Said(None, text(value["text"], where, name), value.get("finish") != "length")
    if not isinstance(value, list):
        return Said(None, text(value, where, name), True)
    *before, last = messages(value, where, name)
    if last["role"] != "assistant":
        raise UserError(f"{where}: column \"{name}\" must end with a turn of the assistant's, found one of the {last['role']}'s")
    return Said(before or None, last["content"], True)


def transcript(value: Any, where: str, name: str, *, chat: bool) -> Said:
    """A dialogue in one text, whose last reply is the response, white space at its ends included where it is not read as `chat`.
    Raises: UserError."""
    before, mark, reply = text(value, where, name).rpartition(REPLY)
    if not mark or "\n\nHuman:" in reply:
        raise UserError(f'{where}: column "{name}" must hold transcripts such as {EXAMPLE}, the reply last')
    text(reply, where, name)
    if not chat:
        return Said(before + mark, reply, True)
    opening, *parts = re.split(r"\n\n(Human|Assistant):", before)
    system = [{"role": "system", "content": opening.strip()}] if opening.strip() else []
    turns = [{"role": ROLES[who], "content": words.strip()} for who, words in zip(parts[::2], parts[1::2], strict=True)]
    return Said(system + turns, reply.strip(), True)


def ranking(found: Mapping[str, Any], names: Mapping[str, str], where: str) -> list[Judged]:
    """The responses that the columns of one row rank, without those that have no rank. Raises: UserError."""
    if "chosen" in found:
        return [Judged(found[field], names[field], rank) for rank, field in enumerate(("chosen", "rejected"))]
    if "label" in found:
        return [Judged(found["response"], names["response"], 1 - verdict(found["label"], where, names["label"]))]
    candidates = several(found["candidates"], where, names["candidates"])
    field = next((field for field in ("ranks", "scores") if field in found), None)
    if field is None:
        return [Judged(value, names["candidates"], rank) for rank, value in enumerate(candidates)]
    given = found[field] if found[field] is not None else [None] * len(candidates)
    ranks = several(given, where, names[field], as_many=len(candidates), of=names["candidates"])
    sign = 1 if field == "ranks" else -1
    pairs = zip(candidates, ranks, strict=True)
    return [Judged(value, names["candidates"], sign * number(rank, where, names[field])) for value, rank in pairs if rank is not None]


def compared(responses: Sequence[Said], ranked: Sequence[Judged], where: str) -> dict[str, Any]:
    """Candidates and their ranks, 0 best; of a single response as it is given. Raises: UserError for a text with two ranks."""
    order = sorted({judged.rank for judged in ranked} | ({0.0} if len(ranked) == 1 else set()))
    ranks = tuple(order.index(judged.rank) for judged in ranked)
    seen: dict[str, int] = {}
    for response, judged, rank in zip(responses, ranked, ranks, strict=True):
        if seen.setdefault(response.text, rank) != rank:
            advice = "correct the row, or type data.skip_invalid=true to leave it out"
            raise UserError(f'{where}: column "{judged.name}" repeats a response that is better or worse there: {advice}')
    best = [response.text for response, rank in zip(responses, ranks, strict=True) if rank == 0 and response.finished]
    meta = {"candidates": tuple(x.text for x in responses), "ranks": ranks, "finished": tuple(x.finished for x in responses)}
    return {**meta, **({"response": best[0]} if best else {})}


def steps(found: Mapping[str, Any], names: Mapping[str, str], where: str, end: str) -> dict[str, Any]:
    """Steps, each but the last ending in `end`, and their labels from 0 to 1. Raises: UserError."""
    name, label = names["steps"], names["step_labels"]
    parts = [text(step, where, name) for step in several(found["steps"], where, name)]
    if not parts:
        raise UserError(f'{where}: column "{name}" is empty')
    labels = several(found["step_labels"], where, label, as_many=len(parts), of=name)
    ended = [step if step.endswith(end) else step + end for step in parts[:-1]]
    return {"steps": (*ended, parts[-1]), "step_labels": tuple(share(value, where, label) for value in labels)}


def several(value: Any, where: str, name: str, *, as_many: int | None = None, of: str = "") -> Sequence[Any]:
    """Raises: UserError unless the value is a list, with an entry for each of the `as_many` in column `of`."""
    if not isinstance(value, list):
        raise UserError(f'{where}: column "{name}" must hold a list, found {kind(value)}')
    if as_many is not None and len(value) != as_many:
        raise UserError(f'{where}: column "{name}" has {len(value)} entries, and column "{of}" has {as_many}')
    return value


def number(value: Any, where: str, name: str) -> float:
    """Raises: UserError unless the value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f'{where}: column "{name}" must hold numbers, found {kind(value)}')
    if not math.isfinite(value):
        raise UserError(f'{where}: column "{name}" holds {value}, which is no finite number')
    return value


def share(value: Any, where: str, name: str) -> float:
    """Raises: UserError unless the value is a number from 0 to 1, true, false, "+" or "-"."""
    if isinstance(value, str) and value in LABELS:
        return LABELS[value]
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f'{where}: column "{name}" must hold numbers from 0 to 1, true or false, "+" or "-"; found {shown(value)}')
    return float(value)


def verdict(value: Any, where: str, name: str) -> bool:
    """Raises: UserError unless the value is true or 1, false or 0."""
    if not isinstance(value, int | float) or value not in (0, 1):
        raise UserError(f'{where}: column "{name}" must hold true or false, or 1 or 0; found {shown(value)}')
    return bool(value)


def shown(value: Any) -> str:
    """The value where it is short to print, else its type in words."""
    return repr(value) if isinstance(value, int | float) or (isinstance(value, str) and len(value) < 20) else kind(value)
