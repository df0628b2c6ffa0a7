"""Responses for the sample browser, from the first groups of a few iterations of each run.

Rows may come from others: values of other types than `rlmods.training.metrics.sample_row` writes
are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rlmods.errors import UserError
from rlmods.lab.saved import SavedRun
from rlmods.lab.show import Segment, check_tree, groups, segments
from rlmods.run.sample_row import Row, checked, number

MAX_LINE_BYTES = 4_000_000
MAX_CHARACTERS = 4_000
"""Characters of a text that are kept."""
MAX_TOKENS = 2_000
"""Tokens of a response that are shown one by one."""
MAX_ROWS = 10_000
"""Rows of a prompt that are read."""
MAX_RESPONSES = 64
"""Responses to a prompt that are kept."""
MAX_TOKENIZER_BYTES = 100_000_000
DECODERS = ("BPEDecoder", "ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Strip", "WordPiece")
"""Decoders of tokenizers that make no text longer."""
TOKEN_VALUES = ("advantages", "log_ratio")
"""Columns with a value for each token that are shown if the rows have them."""


def short(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class Limits:
    """What is taken of the samples of each run."""

    iterations: int
    """Number of iterations, evenly spaced, with the first and the last; and of validations."""
    prompts: int
    """Number of prompts of an iteration."""
    characters: int
    """Size of the samples of a run as JSON."""


def samples(run: SavedRun, limits: Limits) -> list[dict[str, Any]]:
    """Return groups, the responses of a run to one prompt in an iteration: `kind` (iteration or
    validation), `iteration`, `prompt`, `answer`, `rows`, and the `tree` of responses of which some
    branch off from others. The last iteration comes first."""
    if limits.iterations < 1:
        return []
    decode = TokenTexts(run.path)
    found: list[dict[str, Any]] = []
    size = 0
    for kind in ("iteration", "validation"):
        for path in reversed(
            evenly(
                sorted(x for x in (run.path / "samples").glob(f"{kind}_*.jsonl") if x.is_file()),
                limits.iterations,
            )
        ):
            for group in _groups(path, limits.prompts):
                entry = _entry(group, path, decode)
                size += len(json.dumps(entry))
                if size > limits.characters:
                    return found
                found.append({"kind": kind, "iteration": _iteration(path), **entry})
    return found


def evenly(items: Sequence[Path], count: int) -> list[Path]:
    """Return `count` of the items, evenly spaced, with the first and the last; the last if `count`
    is 1."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _iteration(path: Path) -> int:
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() and len(digits) < 15 else 0


def _groups(path: Path, count: int) -> Iterator[list[Row]]:
    """Yield the rows of the first groups of a file, which is read no further. A tree that is none
    is a group without branches."""
    for n, (_, rows) in enumerate(groupby(_rows(path), lambda row: row["id"])):
        if n == count:
            return
        for group in groups(list(islice(rows, MAX_ROWS))):
            try:
                check_tree(group, path)
            except UserError:
                group = [
                    {key: value for key, value in row.items() if key != "branch"} for row in group
                ]
            yield [dict(row) for row in group[:MAX_RESPONSES]]


def _rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # broken, or longer than a line may be
                continue
            if isinstance(row, dict) and (clean := checked(row)):
                yield clean


def _entry(rows: Sequence[Row], path: Path, decode: TokenTexts) -> dict[str, Any]:
    first = rows[0]
    entry = {
        "id": clip(first["id"]),
        "prompt": clip(prompt_text(first.get("prompt"))),
        "rows": [_response(row, decode) for row in rows],
    }
    if (answer := first.get("answer")) is not None:
        entry["answer"] = clip(str(answer))
    if any(isinstance(row.get("branch"), dict) for row in rows):
        entry["tree"] = [_node(segment) for segment in segments(rows)]
    return entry


def prompt_text(prompt: Any) -> str:
    """Return a prompt as text: messages by role."""
    if not isinstance(prompt, list):
        return str(prompt)
    return "\n".join(
        f"{m.get('role')}: {m.get('content')}" if isinstance(m, dict) else str(m) for m in prompt
    )


def clip(text: str) -> str:
    """Return the beginning of a text."""
    return (
        text
        if len(text) <= MAX_CHARACTERS
        else f"{text[:MAX_CHARACTERS]} [{len(text) - MAX_CHARACTERS} more characters]"
    )


def _response(row: Row, decode: TokenTexts) -> dict[str, Any]:
    found: dict[str, Any] = {"length": len(row["tokens"]), "finish": row["finish"]}
    if texts := decode(row["tokens"][:MAX_TOKENS]):
        found["tokens"] = texts
    else:
        found["text"] = clip(row["response"])
    found |= {
        key: short(value) for key in ("reward", "advantage") if (value := row[key]) is not None
    }
    found |= {key: row[key] for key in ("kept", "correct") if isinstance(row.get(key), bool)}
    terms = {
        key.partition("/")[2]: number(value)
        for key, value in row.items()
        if key.startswith("reward/")
    }
    columns = {
        key: value
        for key, value in row.items()
        if "/" in key and not key.startswith("reward/") and value is not None
    }
    values = {
        name: row[name][:MAX_TOKENS] for name in TOKEN_VALUES if isinstance(row.get(name), list)
    }
    branch = row["branch"] if isinstance(row.get("branch"), dict) else {}
    more = {
        "terms": {name: short(value) for name, value in terms.items() if value is not None},
        "columns": {key: str(value)[:200] for key, value in columns.items()},
        "values": {
            name: [None if (x := number(value)) is None else short(x) for value in own]
            for name, own in values.items()
        },
        "calls": list(_calls(row.get("turns"))),
        "segments": [
            [int(begin), int(end), short(float(value))]
            for begin, end, value in branch.get("segments") or ()
        ],
    }
    return found | {key: value for key, value in more.items() if value}


def _calls(turns: Any) -> Iterator[dict[str, Any]]:
    """Yield the calls of a response's turns, as texts."""
    for t, turn in enumerate(turns if isinstance(turns, list) else ()):
        calls = turn.get("calls") if isinstance(turn, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                texts = {key: clip(str(call.get(key))) for key in ("name", "arguments", "result")}
                yield {
                    "turn": t,
                    **texts,
                    **({} if call.get("error") is None else {"error": clip(str(call["error"]))}),
                }


def _node(segment: Segment) -> dict[str, Any]:
    node = asdict(segment) | {"children": [_node(child) for child in segment.children]}
    names = ("initial_entropy", "entropy", "probability")
    node["decisions"] = [
        {name: short(x) for name in names if (x := number(d.get(name))) is not None}
        for d in segment.decisions
    ]
    return node


class TokenTexts:
    """Texts of single tokens, by the exported tokenizer of a run. There are none if the run has not
    exported one, or if it is broken or would take unbounded time."""

    def __init__(self, run: Path) -> None:
        self._texts: dict[int, str] = {}
        self._tokenizer = _read_tokenizer(run / "export" / "tokenizer.json")

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts, [] without a tokenizer."""
        if self._tokenizer is None:
            return []
        for token in set(tokens) - self._texts.keys():
            self._texts[token] = (
                self._tokenizer.decode([token], skip_special_tokens=False) or f"<{token}>"
            )
        return [self._texts[token] for token in tokens]


def _read_tokenizer(file: Path) -> Tokenizer | None:
    """Return a tokenizer that only decodes, None if there is none that can be used."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_TOKENIZER_BYTES:
            return None
        saved = json.loads(file.read_bytes())
        if not _is_bounded(saved.get("decoder")):
            return None
        encoding = ("normalizer", "pre_tokenizer", "post_processor", "truncation", "padding")
        return Tokenizer.from_str(json.dumps(saved | dict.fromkeys(encoding)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        # for a broken file the library raises Exception, and its panics are no Exception
        return None


def _is_bounded(decoder: Any) -> bool:
    """Return whether a decoder makes no text longer. One that replaces texts by longer ones,
    several times, fills the memory, and regular expressions take unbounded time."""
    if not isinstance(decoder, dict):
        return decoder is None
    if decoder.get("type") == "Sequence":
        return all(map(_is_bounded, decoder["decoders"]))
    if decoder.get("type") == "Replace":
        return 0 < len(decoder["pattern"].get("String", "")) >= len(decoder["content"])
    return decoder.get("type") in DECODERS
