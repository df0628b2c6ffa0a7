"""Evaluation of syntax trees: exact rationals where the tree allows them, otherwise 100 digits,
within a budget of steps and sizes.

Two expressions that agree at several random points are taken to be equal (Schwartz-Zippel lemma).
Unlike simplification by a computer algebra system, this decides every pair in bounded time,
including trigonometric and logarithmic expressions."""

import hashlib
import operator
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

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
LIMIT_COST = 2_000
"""Steps of an integral or infinite sum, besides the steps of its evaluations."""
LIMIT_DIGITS = 50
"""Precision of integrals and infinite sums, higher than the precision of the results, as integrands
lose digits near their singularities."""
RESULT_DIGITS = 37
"""Digits of an integral or infinite sum, of which `close` compares 15 less."""
MAX_LIMIT_TERMS = 150
"""Terms of which an infinite sum is extrapolated."""
_SHIFT = 7
"""Terms that are summed one by one to check an extrapolated sum."""
_COSTS = {"^": 3, "call": 10, "apply": 10, "!": 30}


def evaluate(node: Node, point: int = 0) -> Value:
    """Return the value of `node` with its symbols at random point number `point`. Raises TooLarge
    or Undefined."""
    try:
        return _Evaluator(point).value(node, {})
    except ParseError:
        raise
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        raise Undefined(str(error)) from error


def free_names(node: Node) -> frozenset[str]:
    """Return the names of symbols and functions in `node`, except variables bound by a sum, product
    or integral."""
    if node.op in ("sum", "prod", "int"):
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


class _Evaluator:
    def __init__(self, point: int) -> None:
        self.point = point
        self.inside_limit = False

    def value(self, node: Node, bound: Mapping[str, Value]) -> Value:
        spend(_COSTS.get(node.op, 1))
        if node.op in ("sum", "prod", "int"):
            return self.accumulated(node, bound)
        if node.op == "number":
            return node.value
        if node.op == "name" and node.text in bound and not node.args:
            return bound[node.text]
        args = [self.value(arg, bound) for arg in node.args]
        return _check_size(self.operate(node, args))

    def operate(self, node: Node, args: list[Value]) -> Value:
        op = node.op
        if op in ("name", "apply"):
            return self.symbol(node, args)
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
        if op == "^" and self.inside_limit:
            return numbers.limit_power(*args)
        if op not in _OPERATIONS:
            raise Undefined(f"no value: {op}")
        return _OPERATIONS[op](*args)

    def symbol(self, node: Node, args: list[Value]) -> Value:
        """Return e, i, or a rational in (0.2, 2.3) for another name. At the last two points it is
        negative for half of the names, at each for the other half: every name is negative once, and
        names next to each other in the alphabet, such as x and y, are negative one at a time."""
        if node.text in ("e", "i") and not args:
            return mp().e + 0 if node.text == "e" else mp().mpc(0, 1)
        name = node.text
        if args or node.op == "apply":
            name += str(list(map(str, args)))
        key = f"{name}/{self.point}".encode()
        digest = int.from_bytes(hashlib.blake2b(key, key=_SALT, digest_size=8).digest())
        is_negative = self.point >= POINTS - 2 and (sum(name.encode()) + self.point) % 2
        sign = -1 if is_negative else 1
        size = Fraction(digest % 199_999, 100_000) + Fraction(211, 1009)
        return sign * (5 + 5 * size if self.point == _WIDE_POINT else size)

    def accumulated(self, node: Node, bound: Mapping[str, Value]) -> Value:
        if node in THREAD.constants:
            return THREAD.constants[node]
        low = self.value(node.args[0], bound)
        high = self.value(node.args[1], bound)

        def body(x: Value) -> Value:
            return self.value(node.args[2], {**bound, node.text: x})

        if is_integer(low) and is_integer(high) and node.op != "int":
            value = _series(node.op, body, int(low), int(high))
        elif node.op == "prod" or self.inside_limit:
            raise Undefined("a series with a symbolic bound, or a limit inside another")
        else:
            spend(LIMIT_COST)
            self.inside_limit = True
            value = _limit(node.op, body, low, high)
            self.inside_limit = False
        if not bound and not unknowns(node):
            THREAD.constants[node] = value
        return value


def _series(op: str, term: Callable[[Value], Value], low: int, high: int) -> Value:
    operation = numbers.add if op == "sum" else numbers.multiply
    total: Value = Fraction(op == "prod")
    for index in range(low, high + 1):
        spend(3)
        total = _check_size(operation(total, term(Fraction(index))))
    return total


def _limit(op: str, body: Callable[[Value], Value], low: Value, high: Value) -> Value:
    """Return an integral by tanh-sinh quadrature, or an infinite sum by extrapolation of partial
    sums.

    Raises Undefined if it is not found to 22 digits, and unless the terms of a sum vanish: a
    divergent series has no value, also where a summation method gives it one."""

    def real(x: Any) -> Any:
        value = body(Fraction(int(x)) if op == "sum" else x)
        if not numbers.is_real(value):
            raise Undefined("not a real function")
        return numbers.as_mp(value).real

    with mp().workdps(LIMIT_DIGITS):
        start = numbers.as_mp(low)
        if op == "int":
            ends = [start, numbers.as_mp(high)]
            value, error = mp().quad(real, ends, error=True, maxdegree=7)
        else:
            if not is_integer(low) or high != mp().inf:
                raise Undefined("a series with a symbolic bound")
            far = abs(real(start + 400))
            farther = abs(real(start + 1600))
            if not (farther < mp().mpf("0.1") and (farther < far or farther == 0)):
                raise Undefined("the terms of a series do not vanish")
            value = mp().nsum(real, [start, mp().inf], maxterms=MAX_LIMIT_TERMS)
            rest = mp().nsum(real, [start + _SHIFT, mp().inf], maxterms=MAX_LIMIT_TERMS)
            error = value - rest - sum((real(start + k) for k in range(_SHIFT)), mp().zero)
        if not mp().isfinite(value) or not abs(error) <= mp().mpf(10) ** -22 * max(1, abs(value)):
            raise Undefined("an integral or a sum that does not converge")
    THREAD.digits = RESULT_DIGITS
    return value


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
