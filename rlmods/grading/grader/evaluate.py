"""Evaluation of syntax trees: exact rationals where the tree allows them, otherwise 100 digits,
within a budget of steps and sizes.

Two expressions that agree at several random points are taken to be equal (Schwartz-Zippel lemma).
Unlike simplification by a computer algebra system, this decides every pair in bounded time,
including trigonometric and logarithmic expressions."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from rlmods.grading.grader.calculus import infinite_sum, integral
from rlmods.grading.grader.numbers import (
    MAX_BITS,
    TooLarge,
    Undefined,
    Value,
    as_mp,
    bits,
    divide,
    function,
    in_base,
    is_real,
    limit_power,
    matrix_operation,
    mp,
    power,
    scale,
    set_digits,
)
from rlmods.grading.grader.syntax import Node
from rlmods.grading.grader.tokens import ParseError
from rlmods.grading.grader.units import read_unit

POINTS = 6
"""Random points at which expressions are compared: the last two have negative coordinates."""
MAX_STEPS = 40_000
"""Steps per comparison, over all its members and points. Functions and long numbers count for
several steps."""
MAX_TERMS = 2_000
"""Terms of one sum or product."""
LIMIT_COST = 2_000
"""Steps of an integral or infinite sum, besides those of its evaluations."""
_COSTS = {"^": 3, "call": 10, "apply": 10, "!": 30}


class _Budget(threading.local):
    def __init__(self) -> None:
        self.remaining = MAX_STEPS
        self.constants: dict[Node, Value] = {}
        """Values of sums, products and integrals without symbols, which are the same at every
        point."""


_budget = _Budget()


def reset_budget() -> None:
    """Reset this thread's budget for a new comparison."""
    _budget.remaining = MAX_STEPS
    _budget.constants.clear()
    set_digits()


def spend(steps: int) -> None:
    """Deduct `steps` from the budget. Raises TooLarge when it is exhausted."""
    _budget.remaining -= steps
    if _budget.remaining < 0:
        raise TooLarge("too many steps")


def evaluate(node: Node, point: int = 0) -> Value:
    """Return the value of `node` with its symbols at random point number `point`. Raises TooLarge
    or Undefined."""
    try:
        return _Evaluator(point).value(node, {})
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, ParseError):
            raise
        raise Undefined(str(error)) from error


def free_names(node: Node) -> frozenset[str]:
    """Return the names of symbols and functions in `node`, except variables bound by a sum, product
    or integral."""
    if node.op in ("sum", "prod", "int"):
        return (
            free_names(node.args[0])
            | free_names(node.args[1])
            | (free_names(node.args[2]) - {node.text})
        )
    names = {node.text} if node.op in ("name", "apply") else set()
    return frozenset(names).union(*(free_names(arg) for arg in node.args))


class _Evaluator:
    def __init__(self, point: int) -> None:
        self.point = point
        self.inside_limit = False

    def value(self, node: Node, bound: Mapping[str, Value]) -> Value:
        spend(_COSTS.get(node.op, 1))
        if node.op in ("sum", "prod", "int"):
            if node in _budget.constants:
                return _budget.constants[node]
            value = self.integral(node, bound) if node.op == "int" else self.series(node, bound)
            if not bound and free_names(node) <= {"e", "i"}:
                _budget.constants[node] = value
            return value
        if node.op == "number":
            return node.value
        if node.op == "name" and not node.args:
            return self.name(node.text, bound)
        args = (
            [self.value(arg, bound) for arg in (arg for row in node.args for arg in row.args)]
            if node.op == "matrix"
            else [self.value(arg, bound) for arg in node.args]
        )
        if node.op == "matrix":
            width = len(node.args[0].args)
            return tuple(tuple(args[start : start + width]) for start in range(0, len(args), width))
        return self.check_size(self.operate(node, args))

    def check_size(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            spend(bits(value) // 64)
            if bits(value) > MAX_BITS:
                raise TooLarge("too many digits")
        return value

    def name(self, name: str, bound: Mapping[str, Value]) -> Value:
        if name in bound:
            return bound[name]
        if name == "e":
            return mp().e + 0
        if name == "i":
            return mp().mpc(0, 1)
        return self.random(name)

    def random(self, name: str) -> Fraction:
        """Return a rational in (0.2, 2.2), or its negative for half of the names at the last two
        points."""
        digest = zlib.crc32(f"{name}/{self.point}".encode())
        sign = -1 if self.point >= POINTS - 2 and (digest + self.point) % 2 else 1
        return sign * (Fraction(digest % 1999, 1000) + Fraction(211, 1009))

    def operate(self, node: Node, args: list[Value]) -> Value:
        op = node.op
        if op in ("name", "apply"):
            return self.random(f"{node.text}{[str(arg)[:30] for arg in args]}")
        if op == "constant":
            return mp().pi + 0 if node.text == "pi" else mp().inf
        if op == "unit":
            if read_unit(node.text) is None:
                raise Undefined("words in an expression")
            return args[0]
        if op == "neg":
            return scale(args[0], Fraction(-1))
        if op == "%":
            return args[0] / 100
        if op == "ratio" and len(args) == 2:
            return divide(args[0], args[1])
        if op in ("+", "*", "/", "^", "mod"):
            return self.binary(op, *args)
        if op == "base":
            return in_base(node.text, args[1])
        if op in ("call", "!", "abs", "floor", "ceil"):
            if any(isinstance(arg, tuple) for arg in args):
                raise Undefined("a function of a matrix")
            if node.text == "binom" and not all(
                isinstance(arg, Fraction) and arg.denominator == 1 for arg in args
            ):
                spend(150)
            return function(node.text if op == "call" else op, args)
        raise Undefined(f"no value: {op}")

    def binary(self, op: str, a: Value, b: Value) -> Value:
        if isinstance(a, tuple) or isinstance(b, tuple):
            return matrix_operation(op, a, b)
        if op == "/":
            return divide(a, b)
        if op == "^":
            return limit_power(a, b) if self.inside_limit else power(a, b)
        if op == "mod":
            if not (isinstance(a, Fraction) and isinstance(b, Fraction)) or b == 0:
                raise Undefined("mod")
            return a % b
        if isinstance(a, Fraction) != isinstance(b, Fraction):
            a, b = as_mp(a), as_mp(b)
        return a + b if op == "+" else a * b

    def integral(self, node: Node, bound: Mapping[str, Value]) -> Value:
        low, high = (self.value(arg, bound) for arg in node.args[:2])
        with self.limit():
            return integral(self.function(node, bound), low, high)

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Compute an integral or infinite sum. Raises TooLarge inside another one."""
        if self.inside_limit:
            raise TooLarge("an integral or infinite sum inside another")
        spend(LIMIT_COST)
        self.inside_limit = True
        yield
        self.inside_limit = False

    def function(self, node: Node, bound: Mapping[str, Value]) -> Callable[[Value], Any]:
        """Return the real function of an integrand or a term."""

        def of(x: Value) -> Any:
            value = self.value(node.args[2], {**bound, node.text: x})
            if not is_real(value):
                raise Undefined("not a real function")
            return as_mp(value).real

        return of

    def series(self, node: Node, bound: Mapping[str, Value]) -> Value:
        start, stop = (self.value(arg, bound) for arg in node.args[:2])
        if (
            node.op == "sum"
            and not isinstance(stop, Fraction)
            and mp().isinf(stop)
            and isinstance(start, Fraction)
        ):
            term = self.function(node, bound)
            with self.limit():
                return infinite_sum(lambda index: term(Fraction(int(index))), start)
        if not (
            isinstance(start, Fraction)
            and isinstance(stop, Fraction)
            and start.denominator == stop.denominator == 1
        ):
            raise Undefined("a series with a symbolic bound")
        if stop - start > MAX_TERMS:
            raise TooLarge("too many terms")
        total: Value = Fraction(node.op == "prod")
        for index in range(int(start), int(stop) + 1):
            spend(3)
            term = self.value(node.args[2], {**bound, node.text: Fraction(index)})
            total = self.check_size(self.binary("+" if node.op == "sum" else "*", total, term))
        return total
