"""Equality by sympy, where numbers cannot decide: sums, products and integrals with symbolic
bounds, determinants, powers and inverses of matrices.

sympy never reads text: its objects are built from our own syntax tree, by constructors that are
called with numbers and symbols of our own. It is slow, so it runs in worker processes only, and
stops after `LIMIT_S`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from rlmods.grading.grader.compare import equation_value, same_answer
from rlmods.grading.grader.evaluate import evaluate, reset_budget
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.rules import STRICT, Rules, is_number
from rlmods.grading.grader.style import clean_pair
from rlmods.grading.grader.syntax import Node, ParseError, word_set
from rlmods.grading.time_limit import LateError, time_limit

LIMIT_S = 2.0
MAX_NODES = 80
MAX_EXPONENT = 200
"""Largest number in an exponent or a factorial."""
_LIMITS = word_set("sum prod int")
_SINGLE = word_set("number name constant neg + * / ^ ! % call abs sum prod int matrix")
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
    "%": lambda value: value / 100,
}
_FUNCTIONS = {
    **{name: name for name in word_set("det sin cos tan cot sec csc sinh cosh tanh log exp")},
    "!": "factorial",
    "abs": "Abs",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "ln": "log",
    "binom": "binomial",
}
"""Names of functions in sympy."""
Verdict = bool | Literal["sympy", "sympy timeout"]


def graded(answer: str, gold: str, rules: Rules = STRICT) -> Verdict:
    """Return the verdict of `same_answer`; "sympy" for answers that only sympy finds right, and
    "sympy timeout" if it was too slow to tell."""
    if same_answer(answer, gold, rules):
        return True
    if not rules.sympy:
        return False
    try:
        reset_budget()
        answer_node, gold_node = (equation_value(parse(x)) for x in clean_pair(answer, gold))
    except ParseError:
        return False
    if not _is_open(answer_node, gold_node):
        return False
    import sympy  # before the limit: the first time takes longer than most verdicts

    try:
        with time_limit(LIMIT_S):
            return "sympy" if _equal(sympy, answer_node, gold_node) else False
    except (LateError, MemoryError):
        return "sympy timeout"
    except Exception:  # sympy fails in many ways on what it does not know
        return False


def _is_open(answer: Node, gold: Node) -> bool:
    """Return True if numbers do not decide, and the answer leaves no work that the gold has
    done."""
    if (
        answer.op not in _SINGLE
        or gold.op not in _SINGLE
        or _size(answer) + _size(gold) > MAX_NODES
    ):
        return False
    for op in _LIMITS:
        if answer.contains(op) and not gold.contains(op):
            return False
    if answer.contains("call", "det") and not gold.contains("call", "det"):
        return False
    if is_number(gold, reduced=False) or (gold.op == "matrix" and answer.op != "matrix"):
        return False
    return not (_has_value(answer) and _has_value(gold))


def _size(node: Node) -> int:
    return 1 + sum(map(_size, node.args))


def _has_value(node: Node) -> bool:
    try:
        reset_budget()
        evaluate(node)
    except ParseError:
        return False
    return True


def _equal(sympy: Any, answer: Node, gold: Node) -> bool:
    indices = _index_names(answer) | _index_names(gold)
    first = _Builder(sympy, indices).build(answer)
    second = _Builder(sympy, indices).build(gold)
    matrices = [isinstance(value, sympy.MatrixBase) for value in (first, second)]
    if all(matrices):
        if first.shape != second.shape:
            return False
        return all(sympy.simplify(entry) == 0 for entry in first - second)
    if any(matrices):
        return False
    difference = first - second
    if difference.has(sympy.nan, sympy.zoo, sympy.oo):
        return False
    return bool(sympy.simplify(sympy.gammasimp(difference.doit())) == 0)


def _index_names(node: Node) -> set[str]:
    """Return the names in the bounds of sums and products, which are whole numbers."""
    names = set().union(*map(_index_names, node.args))
    if node.op in ("sum", "prod"):
        for bound in node.args[:2]:
            names |= _names(bound)
    return names


def _names(node: Node) -> set[str]:
    own = {node.text} if node.op == "name" else set()
    return own.union(*map(_names, node.args))


class _Builder:
    """Builds sympy objects from a tree. Raises ParseError for what has none."""

    def __init__(
        self, sympy: Any, indices: set[str], bound: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """
        Args:
            indices: free names that are positive whole numbers.
            bound: symbols of the sums, products and integrals around the tree, by name.
        """
        self.sympy = sympy
        self.indices = indices
        self.bound = bound

    def symbol(self, name: str) -> Any:
        sp = self.sympy
        if name in self.bound:
            return self.bound[name]
        if name in self.indices:
            return sp.Symbol(f"v_{name}", integer=True, positive=True)
        return {"e": sp.E, "i": sp.I}.get(name) or sp.Symbol(f"v_{name}")

    def build(self, node: Node) -> Any:
        sp = self.sympy
        op = node.op
        if op == "number" and node.value is not None:
            return sp.Rational(node.value.numerator, node.value.denominator)
        if op == "name" and not node.args:
            return self.symbol(node.text)
        if op == "constant":
            return sp.pi if node.text == "pi" else sp.oo
        if op in _LIMITS:
            return self.limit(node)
        if op == "matrix":
            rows = [list(map(self.build, row.args)) for row in node.args]
            return sp.Matrix(rows)
        args = [self.build(arg) for arg in node.args]
        return self.operate(node, args)

    def operate(self, node: Node, args: list[Any]) -> Any:
        sp = self.sympy
        if node.op in ("^", "!"):
            last = args[-1]
            if last.is_number and (not last.is_real or abs(last) > MAX_EXPONENT):
                raise ParseError("too large an exponent")
        if node.op == "abs" and isinstance(args[0], sp.MatrixBase):
            return args[0].det()
        if node.op == "call" and node.text == "sqrt":
            degree = args[1] if len(args) > 1 else sp.Integer(2)
            return args[0] ** (1 / degree)
        if node.op in _OPERATIONS:
            return _OPERATIONS[node.op](*args)
        name = node.text if node.op == "call" else node.op
        if name not in _FUNCTIONS:
            raise ParseError(f"no sympy function: {name}")
        return getattr(sp, _FUNCTIONS[name])(*args)

    def limit(self, node: Node) -> Any:
        sp = self.sympy
        low, high = map(self.build, node.args[:2])
        is_index = node.op in ("sum", "prod")
        variable = sp.Symbol(f"b_{node.text}", integer=True if is_index else None)
        inner = _Builder(sp, self.indices, {**self.bound, node.text: variable})
        body = inner.build(node.args[2])
        span = (variable, low, high)
        functions = {"sum": sp.summation, "prod": sp.product, "int": sp.integrate}
        value = functions[node.op](body, span)
        if value.has(sp.Sum, sp.Product, sp.Integral):
            raise ParseError("no closed form")
        return sp.piecewise_fold(value)
