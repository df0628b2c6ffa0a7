"""Syntax trees as objects of sympy. Importing this is slow.

sympy never reads text: its objects are built from our own syntax tree, by constructors that are
called with numbers and symbols of our own."""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import sympy

from rlmods.grading.grader.evaluate import free_names
from rlmods.grading.grader.syntax import Node, ParseError, word_set

MAX_EXPONENT = 200
"""Largest number in an exponent or a factorial."""
_LIMITS: dict[str, Callable[..., Any]] = {
    "sum": sympy.summation,
    "prod": sympy.product,
    "int": sympy.integrate,
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
    "%": lambda value: value / 100,
    "sqrt": lambda value, degree=2: value ** (1 / sympy.sympify(degree)),
    "abs": lambda value: value.det() if isinstance(value, sympy.MatrixBase) else sympy.Abs(value),
    "!": sympy.factorial,
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "ln": sympy.log,
    "binom": sympy.binomial,
}
_FUNCTIONS = word_set("det sin cos tan cot sec csc sinh cosh tanh log exp")
"""Functions that sympy calls by the same name."""
Symbols = Mapping[str, sympy.Expr]


def equal(answer: Node, gold: Node) -> bool:
    """Return True if sympy finds two trees equal. Raises ParseError, and errors of sympy, for what
    it does not know."""
    symbols: dict[str, sympy.Expr] = {"e": sympy.E, "i": sympy.I}
    for node in (*answer.walk(), *gold.walk()):
        if node.op in ("sum", "prod"):  # names in their bounds are whole numbers
            for name in free_names(node.args[0]) | free_names(node.args[1]):
                symbols[name] = sympy.Symbol(f"v_{name}", integer=True, positive=True)
    first = _built(answer, symbols)
    second = _built(gold, symbols)
    matrices = [isinstance(value, sympy.MatrixBase) for value in (first, second)]
    if any(matrices):
        same_shape = all(matrices) and first.shape == second.shape
        return same_shape and all(sympy.simplify(entry) == 0 for entry in first - second)
    difference = first - second
    if difference.has(sympy.nan, sympy.zoo, sympy.oo):
        return False
    return bool(sympy.simplify(sympy.gammasimp(difference.doit())) == 0)


def _built(node: Node, symbols: Symbols) -> Any:
    """Return the object of a tree; names that are not in `symbols` are plain symbols."""
    build = partial(_built, symbols=symbols)
    if node.op == "number" and node.value is not None:
        return sympy.Rational(node.value)
    if node.op == "name" and not node.args:
        return symbols.get(node.text, sympy.Symbol(f"v_{node.text}"))
    if node.op == "constant":
        return sympy.pi if node.text == "pi" else sympy.oo
    if node.op in _LIMITS:
        return _limit(node, symbols)
    if node.op == "matrix":
        return sympy.Matrix([list(map(build, row.args)) for row in node.args])
    args = list(map(build, node.args))
    if node.op in ("^", "!"):
        last = args[-1]
        if last.is_number and (not last.is_real or abs(last) > MAX_EXPONENT):
            raise ParseError("too large an exponent")
    name = node.text if node.op == "call" else node.op
    if name not in _OPERATIONS and name not in _FUNCTIONS:
        raise ParseError(f"no sympy function: {name}")
    return _OPERATIONS.get(name, vars(sympy).get(name))(*args)


def _limit(node: Node, symbols: Symbols) -> Any:
    low = _built(node.args[0], symbols)
    high = _built(node.args[1], symbols)
    is_index = node.op in ("sum", "prod")
    variable = sympy.Symbol(f"b_{node.text}", integer=True if is_index else None)
    body = _built(node.args[2], {**symbols, node.text: variable})
    value = _LIMITS[node.op](body, (variable, low, high))
    if value.has(sympy.Sum, sympy.Product, sympy.Integral):
        raise ParseError("no closed form")
    return sympy.piecewise_fold(value)
