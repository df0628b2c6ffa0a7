"""Arithmetic on numbers that comes as untrusted text, in place of `eval`: no names, calls or
attributes, so that there is nothing through which a text could reach Python."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MAX_CHARACTERS = 20_000
MAX_BITS = 100_000
"""Largest number, in bits, that a power may need."""
Number = Fraction | float
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class RefusedError(ValueError):
    """The text is not an expression that may be evaluated."""


def evaluate(text: str) -> Number:
    """Return the value of arithmetic on numbers, as a fraction where it can be exact.

    Raises:
        RefusedError: the text is something else, too long, or needs too large a number.
        ArithmeticError: the value does not exist, or is too large for a float.
    """
    if len(text) > MAX_CHARACTERS:
        raise RefusedError("too long")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except RefusedError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RefusedError("not an expression") from error


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        result = OPERATORS[type(node.op)](_value(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left = _value(node.left)
        right = _value(node.right)
        bits = 64
        if isinstance(left, Fraction):
            bits = max(1, left.numerator.bit_length(), left.denominator.bit_length())
        if isinstance(node.op, ast.Pow) and abs(float(right)) * bits > MAX_BITS:
            raise RefusedError("too large a number")
        result = OPERATORS[type(node.op)](left, right)
    else:
        raise RefusedError(f"{type(node).__name__} is not evaluated")
    if isinstance(result, complex):
        raise RefusedError("not a real number")
    # `//` of fractions is a whole number
    return Fraction(result) if isinstance(result, int) else result
