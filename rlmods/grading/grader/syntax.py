"""Syntax tree of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlmods.grading.grader.tokens import ParseError

MAX_EXPONENT_DIGITS = 3
"""With the digits of one token, this stays below 4300 digits, the most that Python converts to
text."""
MAX_HEIGHT = 200
"""Height of a tree."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the syntax tree."""

    op: str
    """number, name, constant, text, neg, +, *, /, ^, +-, !, %, mod, call, apply, abs, floor, ceil,
    sum, prod, int, base, unit, phrase, group, list, rel, ratio, matrix, row, cup, cap, setminus."""
    args: tuple[Node, ...] = ()
    text: str = ""
    """Name: a symbol, a function, the bracket pair of a group, the unit, the operators of a
    relation (space-separated)."""
    value: Fraction | None = None
    """Value of a number."""

    def contains(self, op: str, text: str | None = None) -> bool:
        """Return True if a node of the tree has this operation, and this text if one is given."""
        if self.op == op and text in (None, self.text):
            return True
        return any(arg.contains(op, text) for arg in self.args)


INFINITY = Node("constant", text="infty")
EMPTY_SET = Node("group", text=r"\{\}")
REALS = Node("group", (Node("neg", (INFINITY,)), INFINITY), "()")


def number(literal: str) -> Node:
    """Return the node of a decimal literal, with its exact value. `0.1r6` is 0.1666..."""
    plain, _, period = literal.partition("r")
    mantissa, _, exponent = plain.lower().partition("e")
    if len(exponent.lstrip("+-")) > MAX_EXPONENT_DIGITS:
        raise ParseError("exponent too large")
    value = Fraction(plain if mantissa.strip(".") else 0)
    if period:
        places = len(plain.partition(".")[2])
        value += Fraction(int(period), (10 ** len(period) - 1) * 10**places)
    return Node("number", text=literal, value=value)


def check_height(root: Node) -> Node:
    """Return `root`. Raises ParseError for a tree so high, as of 5!!!!!!, that recursion over it
    could fail."""
    level: tuple[Node, ...] = (root,)
    for _ in range(MAX_HEIGHT):
        level = tuple(arg for node in level for arg in node.args)
        if not level:
            return root
    raise ParseError("nested too deeply")
