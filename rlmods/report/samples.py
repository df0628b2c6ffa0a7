"""Responses of runs, as the sample browser of the report shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlmods.cli.show import check_tree, groups, tree_lines
from rlmods.run.jsonl import read_rows
from rlmods.run.saved import SavedRun
from rlmods.types import UserError

MAX_TEXT = 4000
"""Characters of a prompt or response; the middle of a longer one is left out."""


def sample_files(run: SavedRun, num_files: int) -> list[Path]:
    """Return files of training responses, evenly spaced over the run with the first and the last, then the last validation."""
    folder = run.path / "samples"
    files = sorted(x for x in folder.glob("iteration_*.jsonl") if re.fullmatch(r"iteration_\d+", x.stem))
    count = min(num_files, len(files))
    chosen = [files[round(i * (len(files) - 1) / max(1, count - 1))] for i in range(count)]
    return [*dict.fromkeys(chosen), *sorted(folder.glob("validation_*.jsonl"))[-1:]]


def samples(file: Path, num_prompts: int) -> dict[str, Any]:
    """Return the responses in a file to its first prompts, by prompt."""
    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for row in read_rows(file):
        key = str(row.get("id"))
        if key in by_prompt or len(by_prompt) < num_prompts:
            by_prompt.setdefault(key, []).append(row)
    kind, _, iteration = file.stem.partition("_")
    return {"kind": kind, "iteration": int(iteration), "prompts": [_prompt(key, rows, file) for key, rows in by_prompt.items()]}


def _prompt(key: str, rows: Sequence[Mapping[str, Any]], file: Path) -> dict[str, Any]:
    first = rows[0]
    return {
        "id": _cut(key),
        "prompt": _cut(_text(first.get("prompt"))),
        "answer": None if first.get("answer") is None else _cut(_text(first["answer"])),
        "responses": [_response(row) for row in rows],
        **({"tree": tree} if (tree := _tree(rows, file)) else {}),
    }


def _response(row: Mapping[str, Any]) -> dict[str, Any]:
    terms = {name.removeprefix("reward/"): x for name, x in row.items() if name.startswith("reward/") and _is_number(x)}
    tokens = row.get("tokens")
    return {
        "text": _cut(_text(row.get("response"))),
        "reward": _number(row.get("reward")),
        "terms": {_cut(name): _number(x) for name, x in terms.items()},
        "advantage": _number(row.get("advantage")),
        "correct": row.get("correct") if isinstance(row.get("correct"), bool) else None,
        "kept": row.get("kept") if isinstance(row.get("kept"), bool) else None,
        "finish": _cut(_text(row.get("finish", ""))),
        "length": len(tokens) if isinstance(tokens, list) else None,
    }


def _tree(rows: Sequence[Mapping[str, Any]], file: Path) -> str:
    """Return the trees of responses of several turns or with branches, as `rlmods.show` prints them; "" for others."""
    if not any(row.get("branch") or row.get("turns") for row in rows):
        return ""
    try:
        trees = groups(rows)
        for tree in trees:
            check_tree(tree, file)
        return _cut("\n\n".join("\n".join(tree_lines(tree)) for tree in trees), 8 * MAX_TEXT)
    except (UserError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return f"{file.name}: these rows are no tree ({type(error).__name__})"


def _text(value: Any) -> str:
    if isinstance(value, list):  # messages of a conversation
        return "\n".join(f"{x.get('role')}: {x.get('content')}" if isinstance(x, dict) else str(x) for x in value)
    return str(value)


def _cut(text: str, length: int = MAX_TEXT) -> str:
    return text if len(text) <= length else f"{text[: length // 2]} [{len(text) - length} characters left out] {text[-length // 2 :]}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(f"{value:.6g}") if _is_number(value) and abs(value) < 1e300 else None
