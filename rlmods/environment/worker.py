"""Calls of functions whose results are text: the worker side of tools. Imports no torch; a tool
imports what it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

MARK = "... [truncated]"
"""End of a result that was cut."""


def work(target: str, arguments: Mapping[str, Any], max_chars: int) -> str:
    """Return the result of a function, "module:function", as a text of at most `max_chars`
    characters before the mark of a cut."""
    module, _, name = target.partition(":")
    return to_text(getattr(import_module(module), name)(**arguments), max_chars)


def to_text(result: Any, max_chars: int) -> str:
    """Return a result as text that every tokenizer reads: bytes as UTF-8 where they are, other
    values as JSON, no halves of surrogate pairs. It is cut at `max_chars` characters, with a
    mark."""
    if isinstance(result, bytes | bytearray | memoryview):
        result = bytes(result[: 4 * max_chars + 4]).decode("utf-8", "replace")
    text = (
        result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
    )
    text = text[: max_chars + 1].encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= max_chars else text[:max_chars] + MARK
