"""Evaluation of syntax trees: exact rationals where the tree allows them, otherwise 100 digits,
within a budget of steps and sizes.

Two expressions that agree at several random points are taken to be equal (Schwartz-Zippel lemma).
Unlike simplification by a computer algebra system, this decides every pair in bounded time,
including trigonometric and logarithmic expressions, but not integrals and infinite series, which
have no value here."""

import hashlib
import operator
import os
from collections.abc import Callable, Mapping
from fractions import Fraction

import rlmods.grading.grader.numbers as numbers
from rlmods.grading.grader.numbers import (
    THREAD,
    TooLarge,
    Undefined,
    Value,
    bits,
    is_integer,
    mp,
    spend,
)
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.style import MAX_CHARS
from rlmods.grading.grader.syntax import Node, ParseError
from rlmods.grading.grader.units import read_unit

POINTS = 6
"""Random points at which expressions are compared: the last two have negative coordinates."""
_WIDE_POINT = 1
"""The point whose coordinates are between 6 and 17, beyond the bounds that a minimum could set."""
_SALT = os.urandom(16)
"""The points differ in each process, so that no text is written for them."""
SERIES = ("sum", "prod")
LIMITS = (*SERIES, "int")
"""Operations with a bound variable. Integrals, and series whose bounds are not integers, have no
numeric value: sympy decides them (`algebra`)."""
_COSTS = {"^": 3, "call": 10, "apply": 10, "!": 30}


def evaluate(node: Node, point: int = 0) -> Value:
    """Return the value of `node` with its symbols at random point number `point`. Raises TooLarge
    or Undefined."""
    try:
        return _value(node, point, {})
    except ParseError:
        raise
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        raise Undefined(str(error)) from error


def free_names(node: Node) -> frozenset[str]:
    """Return the names of symbols and functions in `node`, except variables bound by a sum, product
    or integral."""
    if node.op in LIMITS:
        low, high, body = map(free_names, node.args)
        return low | high | (body - {node.text})
    names = {node.text} if node.op in ("name", "apply") else set()
    return frozenset(names).union(*map(free_names, node.args))


def unknowns(node: Node) -> frozenset[str]:
    """Return the free names of `node` that are not numbers."""
    return free_names(node) - {"e", "i"}


def calculate(text: str) -> Value:
    """Return the value of an expression without symbols. Raises ParseError for another text."""
    if len(text) > MAX_CHARS:
        raise ParseError("too long")
    node = parse(text)
    if unknowns(node):
        raise ParseError(f"not a number: {', '.join(sorted(unknowns(node)))}")
    THREAD.reset()
    return evaluate(node)


def _value(node: Node, point: int, bound: Mapping[str, Value]) -> Value:
    spend(_COSTS.get(node.op, 1))
    if node.op in SERIES:
        return _series(node, point, bound)
    if node.op == "int":
        raise Undefined("an integral")
    if node.op == "number":
        return node.value
    if node.op == "name" and node.text in bound and not node.args:
        return bound[node.text]
    args = [_value(arg, point, bound) for arg in node.args]
    return _check_size(_operate(node, args, point))


def _series(node: Node, point: int, bound: Mapping[str, Value]) -> Value:
    low, high = (_value(arg, point, bound) for arg in node.args[:2])
    if not (is_integer(low) and is_integer(high)):
        raise Undefined("a series whose bounds are not integers")
    operation = numbers.add if node.op == "sum" else numbers.multiply
    total: Value = Fraction(node.op == "prod")
    for index in range(int(low), int(high) + 1):
        spend(3)
        term = _value(node.args[2], point, {**bound, node.text: Fraction(index)})
        total = _check_size(operation(total, term))
    return total


def _operate(node: Node, args: list[Value], point: int) -> Value:
    op = node.op
    if op in ("name", "apply"):
        return _symbol(node, args, point)
    if op in ("matrix", "row"):
        return tuple(args)
    if op == "constant":
        return mp().pi + 0 if node.text == "pi" else mp().inf
    if op == "unit":
        if read_unit(node.text) is None:
            raise Undefined("words in an expression")
        return args[0]
    if op in ("call", "!", "abs"):
        return numbers.function(node.text if op == "call" else op, args)
    if op not in _OPERATIONS:
        raise Undefined(f"no value: {op}")
    return _OPERATIONS[op](*args)


def _symbol(node: Node, args: list[Value], point: int) -> Value:
    """Return e, i, or a rational in (0.2, 2.3) for another name. At the last two points it is
    negative for half of the names, at each for the other half: every name is negative once, and
    names next to each other in the alphabet, such as x and y, are negative one at a time."""
    if node.text in ("e", "i") and not args:
        return mp().e + 0 if node.text == "e" else mp().mpc(0, 1)
    name = node.text
    if args or node.op == "apply":
        name += str(list(map(str, args)))
    key = f"{name}/{point}".encode()
    digest = int.from_bytes(hashlib.blake2b(key, key=_SALT, digest_size=8).digest())
    is_negative = point >= POINTS - 2 and (sum(name.encode()) + point) % 2
    sign = -1 if is_negative else 1
    size = Fraction(digest % 199_999, 100_000) + Fraction(211, 1009)
    return sign * (5 + 5 * size if point == _WIDE_POINT else size)


def _check_size(value: Value) -> Value:
    if isinstance(value, Fraction):
        spend(bits(value) // 64)
        if bits(value) > numbers.MAX_BITS:
            raise TooLarge("too many digits")
    return value


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "+": numbers.add,
    "*": numbers.multiply,
    "/": numbers.divide,
    "ratio": numbers.divide,
    "^": numbers.power,
    "mod": operator.mod,
    "neg": lambda value: numbers.multiply(value, Fraction(-1)),
    "%": lambda value: numbers.divide(value, Fraction(100)),
}
