"""Responses that a report shows: some prompts of a few iterations of each run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from rlmods.lab.credit import Row, TokenTexts, advantage_text, credit, turns
from rlmods.lab.tree import groups, segments
from rlmods.run.files import message_text, read_rows
from rlmods.run.saved import SavedRun

MAX_CHARACTERS = 4_000
"""Characters of a text that are kept."""
MAX_TOKENS = 2_000
"""Tokens of a response that are shown one by one."""
MAX_RESPONSES = 64
"""Responses to a prompt that are kept."""


def short(value: float | None) -> float | None:
    """Round to five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def samples(
    run: SavedRun, num_files: int, num_prompts: int, max_characters: int
) -> list[dict[str, Any]]:
    """Return groups, the responses of a run to one prompt in an iteration: `kind` (iteration or
    validation), `iteration`, `prompt`, `answer`, `rows`, and the `tree` of responses if some branch
    off from others. The last iteration comes first.

    Args:
        num_files: number of iterations, and of validations, evenly spaced.
        num_prompts: number of prompts of each.
        max_characters: size of the result as JSON.
    """
    decode = TokenTexts(run.path)
    found: list[dict[str, Any]] = []
    size = 0
    for kind in ("iteration", "validation"):
        files = sorted((run.path / "samples").glob(f"{kind}_*.jsonl"))
        for path in evenly(files, num_files):
            iteration = int(path.stem.removeprefix(f"{kind}_"))
            for group in _groups(path, num_prompts):
                entry = _entry(group, decode)
                size += len(json.dumps(entry))
                if size > max_characters:
                    return found
                found.append({"kind": kind, "iteration": iteration, **entry})
    return found


def evenly(items: Sequence[Path], count: int) -> list[Path]:
    """Return `count` of the items, evenly spaced, from the last one to the first one."""
    positions = np.linspace(len(items) - 1, 0, min(count, len(items)))
    return [items[i] for i in positions.round().astype(int)]


def _groups(path: Path, count: int) -> list[list[Row]]:
    found = []
    for _, rows in islice(groupby(read_rows(path), lambda row: row["id"]), count):
        found += [group[:MAX_RESPONSES] for group in groups(list(rows))]
    return found


def _entry(rows: Sequence[Row], decode: TokenTexts) -> dict[str, Any]:
    first = rows[0]
    entry = {
        "id": clip(first["id"]),
        "prompt": clip(message_text(first["prompt"])),
        "rows": [_response(row, decode) for row in rows],
    }
    if first.get("answer") is not None:
        entry["answer"] = clip(str(first["answer"]))
    if any(row.get("branch") for row in rows):
        entry["tree"] = list(map(asdict, segments(rows)))
    return entry


def clip(text: str) -> str:
    """Return the beginning of a text."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]} [{len(text) - MAX_CHARACTERS} more characters]"


def _response(row: Row, decode: TokenTexts) -> dict[str, Any]:
    texts = decode(row["tokens"][:MAX_TOKENS])
    terms = {}
    columns = {}
    for key, value in row.items():
        if key.startswith("reward/") and value is not None:
            terms[key.removeprefix("reward/")] = short(value)
        elif "/" in key and value is not None:
            columns[key] = str(value)[:200]
    runs = [[begin, end, *map(short, values)] for begin, end, *values in credit(row)]
    found = {
        "tokens": texts or None,
        "text": None if texts else clip(row["response"]),
        "reward": short(row.get("reward")),
        "advantage": short(row.get("advantage")),
        "kept": row.get("kept"),
        "correct": row.get("correct"),
        "terms": terms or None,
        "columns": columns or None,
        "calls": _calls(row.get("turns") or ()) or None,
        "credit": runs or None,
        "credit_terms": list(row.get("credit_terms") or ()) or None,
        "turns": _notes(row) or None,
        "trained": row.get("trained"),
    }
    known = {key: value for key, value in found.items() if value is not None}
    return {"length": len(row["tokens"]), "finish": row["finish"], **known}


def _notes(row: Row) -> list[list[Any]]:
    """Return the range of tokens of each turn, and its advantage with the terms of a sum; [] for a
    response of one turn and one advantage."""
    if not row.get("turns") and not row.get("credit"):
        return []
    found = []
    for turn in turns(row):
        start, stop = turn["start"], turn["stop"]
        text = advantage_text(row, start, stop) if credit(row) else ""
        found.append([start, stop, text])
    return found


def _calls(of_response: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for t, turn in enumerate(of_response, 1):
        for call in turn.get("calls") or ():
            shown = {key: clip(str(call.get(key))) for key in ("name", "arguments", "result")}
            if call.get("error") is not None:
                shown["error"] = clip(str(call["error"]))
            found.append({"turn": t, **shown})
    return found
