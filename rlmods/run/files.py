"""Writing files that are either there and whole or not there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlmods.types import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """
    Raises:
        UserError: what is in the block cannot write to `path`: a full disk, a quota, a folder that is gone.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error.strerror}): make room, or choose another run_dir=...") from error


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replaces `path` in one step, making its folder first: a reader or a crash sees the old file or the new one, never half of it.

    Raises:
        UserError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON that every parser reads: NaN and infinities are null, tensors and arrays lists, and anything else unknown its `str`."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def write_summary(
    path: Path,
    *,
    label: str,
    algo: str,
    parts: Mapping[str, str],
    iterations: int,
    accuracy: Mapping[str, float | None],
    wall_s: float,
    response_tokens: int,
    peak_memory_mb: float,
    exit: str,
) -> None:
    """Writes `summary.json`. `accuracy` has the keys first, best and last; `exit` is "finished", "interrupted" or "failed: <reason>".

    Raises:
        ValueError: another key in `accuracy`, another form of `exit`.
    """
    if set(accuracy) != {"first", "best", "last"}:
        raise ValueError(f"accuracy has first, best and last, got {sorted(accuracy)}")
    if exit not in ("finished", "interrupted") and not exit.startswith("failed: "):
        raise ValueError(f"exit is finished, interrupted or failed: <reason>, got {exit!r}")
    summary = {
        "label": label,
        "algo": algo,
        "parts": parts,
        "iterations": iterations,
        "val/accuracy": {key: accuracy[key] for key in ("first", "best", "last")},
        "wall_s": wall_s,
        "response_tokens": response_tokens,
        "peak_memory_mb": peak_memory_mb,
        "exit": exit,
    }
    atomic_write(path, dumps(summary, indent=2) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)
