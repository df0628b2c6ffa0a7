"""The worker side of tools: calls of functions whose results are text, and the functions that ship
with the package. Imports no torch; a tool imports what it needs."""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rlmods.grading.grader.evaluate import calculate
from rlmods.grading.grader.numbers import is_integer, is_real
from rlmods.grading.sandbox.run import Limits, run_program

MARK = "... [truncated]"
"""End of a result that was cut."""
PYTHON_TIMEOUT_S = 5.0
"""Wall and processor time of a program."""


def work(target: str, arguments: Mapping[str, Any], max_chars: int) -> str:
    """Return the result of a function, "module:function", as a text of at most `max_chars`
    characters before the mark of a cut."""
    module, _, name = target.partition(":")
    return to_text(getattr(import_module(module), name)(**arguments), max_chars)


def to_text(result: object, max_chars: int) -> str:
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


def calculator(expression: str) -> str:
    """Return the value of an arithmetic expression, such as 12 * (3 + 4)."""
    if "%" in expression:  # a percentage, or a remainder
        raise ValueError("% is not evaluated: write / 100")
    value = calculate(expression.replace("**", "^"))
    if not is_real(value):
        raise ValueError("not a real number")
    if is_integer(value):
        return str(int(value))
    number = float(value.real)
    return str(int(number) if number.is_integer() and abs(number) < 1e15 else number)


def python(code: str) -> str:
    """Run a Python program and return what it prints."""
    result = run_program(code, "", Limits(timeout_s=PYTHON_TIMEOUT_S))
    if result.status == "timeout":
        raise TimeoutError("the program was stopped at its time limit")
    if result.status == "error":
        raise RuntimeError(result.stderr_line or "the program failed")
    return result.stdout
