"""Syntax tree of an answer, and the token cursor of the parser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

from rlmods.grading.grader.tokens import ParseError, Token

MAX_EXPONENT_DIGITS = 3
"""With the digits of one token, this stays below 4300 digits, the most that Python converts to
text."""
MAX_DEPTH = 60
"""Depth of the parser's recursion: 30 nested brackets."""
MAX_HEIGHT = 200
"""Height of a tree."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the syntax tree."""

    op: str
    """number, name, constant, text, neg, +, *, /, ^, +-, !, %, mod, call, apply, abs, floor, ceil,
    sum, prod, int, base, unit, phrase, group, list, rel, ratio, matrix, cup, cap, setminus."""
    args: tuple[Node, ...] = ()
    text: str = ""
    """Name: a symbol, a function, the bracket pair of a group, the unit, the operators of a
    relation (space-separated)."""
    value: Fraction | None = None
    """Value of a number."""


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


class Cursor:
    """Position in a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Enter one level of recursion. Raises ParseError beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deeply")
        yield
        self.depth -= 1

    @property
    def peek(self) -> Token:
        return self.tokens[self.position]

    def text_since(self, start: int) -> str:
        """Return the text read since position `start`, without enclosing braces."""
        return "".join(token.text for token in self.tokens[start : self.position]).strip("{}")

    def next_is(self, *texts: str) -> bool:
        return self.peek.kind in ("op", "word") and self.peek.text in texts

    def accept(self, *texts: str) -> str | None:
        if not self.next_is(*texts):
            return None
        self.position += 1
        return self.tokens[self.position - 1].text

    def expect(self, *texts: str) -> str:
        text = self.accept(*texts)
        if text is None:
            raise ParseError(f"expected {' or '.join(texts)}, got {self.peek.text!r}")
        return text
