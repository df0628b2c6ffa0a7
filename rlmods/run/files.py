"""Atomic file writes, JSON without NaN, and `summary.json`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlmods.errors import UserError
from rlmods.run.secrets import clean, clean_urls


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes to `path`, into a one-line error.

    Raises:
        UserError: full disk, quota, missing folder.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot write there ({error.strerror}): make room, or choose another "
            "run_dir=..."
        ) from error


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace `path` atomically, creating its folder: a reader, or a crash, sees the old file or
    the new one, never a part. Lone surrogates are written escaped, as in JSON.

    Raises:
        UserError: the file cannot be written.
    """
    with wrap_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            # of a crash, or a link in a received folder to a file elsewhere
            temporary.unlink(missing_ok=True)
            temporary.write_bytes(
                content.encode(errors="backslashreplace") if isinstance(content, str) else content
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def dumps(value: Any, indent: int | None = None) -> str:
    """Return standard JSON: NaN and infinities become null, tensors and arrays lists, other unknown
    types their `str`."""
    try:  # most values need no change, and copying them takes longer than writing them
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, indent=indent, default=_to_json
        )
    except (TypeError, ValueError):  # keys that are not strings, NaN and infinities
        return json.dumps(_to_json(value), ensure_ascii=False, allow_nan=False, indent=indent)


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
    dropped_prompts: int = 0,
    seed: int | None = None,
    overrides: Sequence[str] | None = None,
    fork: str | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Write `summary.json`. `accuracy` has the keys first, best and last; `exit` is "finished",
    "interrupted" or "failed: <reason>". The number of dropped prompts is written if there are any,
    seed and overrides if they are known, and the origin, RUN@ITERATION, if the run is a fork.
    `warnings` are findings that hold at the end of the run, such as a collapse. URLs are
    written without their secrets.

    Raises:
        ValueError: other keys in `accuracy`, an invalid `exit`.
    """
    if set(accuracy) != {"first", "best", "last"}:
        raise ValueError(f"accuracy has first, best and last, got {sorted(accuracy)}")
    if exit not in ("finished", "interrupted") and not exit.startswith("failed: "):
        raise ValueError(f"exit is finished, interrupted or failed: <reason>, got {exit!r}")
    summary = {
        "label": clean_urls(label),
        "algo": algo,
        "parts": parts,
        "iterations": iterations,
        "val/accuracy": {key: accuracy[key] for key in ("first", "best", "last")},
        "wall_s": wall_s,
        "response_tokens": response_tokens,
        "peak_memory_mb": peak_memory_mb,
        "exit": clean(exit),
        **({"dropped_prompts": dropped_prompts} if dropped_prompts else {}),
        **({} if seed is None else {"seed": seed}),
        **({} if overrides is None else {"overrides": list(map(clean_urls, overrides))}),
        **({"fork": fork} if fork else {}),
        **({"warnings": list(map(clean, warnings))} if warnings else {}),
    }
    atomic_write(path, dumps(summary, indent=2) + "\n")


def _to_json(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_to_json(item) for item in value]
    return _to_json(value.tolist()) if hasattr(value, "tolist") else str(value)
