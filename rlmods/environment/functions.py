"""Functions that ship with the package as tools. Imports no torch, as worker processes import this
module."""

from __future__ import annotations

from fractions import Fraction

from rlmods.grading.arithmetic import evaluate
from rlmods.grading.sandbox.run import Limits, run_program

PYTHON_TIMEOUT_S = 5.0
"""Wall and processor time of a program."""


def calculator(expression: str) -> str:
    """Return the value of an arithmetic expression, such as 12 * (3 + 4)."""
    # a power, as people write it; exclusive or is not arithmetic
    expression = expression.replace("^", "**")
    value = evaluate(expression)
    if isinstance(value, Fraction):
        value = value.numerator if value.denominator == 1 else float(value)
    elif value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value)


def python(code: str) -> str:
    """Run a Python program and return what it prints."""
    result = run_program(code, "", Limits(timeout_s=PYTHON_TIMEOUT_S))
    if result.status == "timeout":
        raise TimeoutError("the program was stopped at its time limit")
    if result.status == "error":
        raise RuntimeError(result.stderr_line or "the program failed")
    return result.stdout
