"""The tree that an answer is read into, and the cursor that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlmods.reward.grader.tokens import ParseError, Token

MAX_EXPONENT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the tree."""

    op: str
    """number, name, constant, text, neg, +, *, /, ^, +-, !, %, mod, call, apply, abs, floor, ceil, sum, prod, base, unit,
    group, list, rel, ratio, matrix, cup, cap, setminus."""
    args: tuple[Node, ...] = ()
    text: str = ""
    """Its name: a symbol, a function, the bracket pair of a group, the unit, the operators of a relation (space-separated)."""
    value: Fraction | None = None
    """Of a number."""


def number(literal: str) -> Node:
    """A decimal literal, exact. `0.1r6` is 0.1666..."""
    plain, _, period = literal.partition("r")
    mantissa, _, exponent = plain.lower().partition("e")
    if len(exponent.lstrip("+-")) > MAX_EXPONENT_DIGITS:
        raise ParseError("exponent too large")
    value = Fraction(mantissa.strip(".") and plain)
    if period:
        places = len(plain.partition(".")[2])
        value += Fraction(int(period), (10 ** len(period) - 1) * 10**places)
    return Node("number", text=literal, value=value)


class Cursor:
    """A position in a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0

    @property
    def peek(self) -> Token:
        return self.tokens[self.position]

    def ahead(self, *texts: str) -> bool:
        return self.peek.kind in ("op", "word") and self.peek.text in texts

    def accept(self, *texts: str) -> str | None:
        if not self.ahead(*texts):
            return None
        self.position += 1
        return self.tokens[self.position - 1].text

    def expect(self, *texts: str) -> str:
        found = self.accept(*texts)
        if found is None:
            raise ParseError(f"expected {' or '.join(texts)}, found {self.peek.text!r}")
        return found
