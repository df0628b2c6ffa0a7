"""Worked solutions of generated arithmetic, column by column, for models that judge steps."""

from __future__ import annotations

import re
from itertools import zip_longest
from operator import add, mul, sub
from random import Random

OPERATIONS = {"+": add, "-": sub, "*": mul}
ERRORS = (-10, -1, 1, 10)


def worked(question: str, wrong: int | None = None, error: int = 0) -> tuple[str, ...]:
    """The steps that solve `a op b` or `(a op b)*c`, operands not negative, each but the last a line: sums and differences column by
    column, products by the columns of their left factor, what they give added up from the largest on, then the answer.

    37+48 is worked as 7+8=15, 30+40=70, 70+15=85. Step number `wrong` is off by `error`, and the steps after it go on from what it
    states: each of them is right in itself, and the answer is not."""
    lines: list[str] = []

    def write(x: int, operator: str, y: int) -> int:
        value = int(OPERATIONS[operator](x, y)) + (error if len(lines) == wrong else 0)
        lines.append(f"{x}{operator}{y}={value}\n")
        return value

    def solve(x: int, operator: str, y: int) -> int:
        if operator == "*":
            terms = [write(column, "*", y) for column in columns(x)]
        else:
            terms = [write(*pair) for pair in ((a, operator, b) for a, b in zip_longest(columns(x), columns(y), fillvalue=0))]
        value = terms.pop()
        while terms:
            term = terms.pop()
            value = write(value, "-" if term < 0 else "+", abs(term))
        return value

    a, operator, b, factor = re.fullmatch(r"\(?(\d+)([-+*])(\d+)\)?(?:\*(\d+))?", question).groups()  # type: ignore[union-attr]
    value = solve(int(a), operator, int(b))
    if factor is not None:
        value = solve(value, "*", int(factor))
    return (*lines, f"<answer>{value}</answer>")


def slipped(question: str, rng: Random) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """A solution with one wrong calculation in it, and its step labels: 1 before that step, 0 from it on."""
    wrong = rng.randrange(len(worked(question)) - 1)
    steps = worked(question, wrong, rng.choice(ERRORS))
    return steps, tuple(float(i < wrong) for i in range(len(steps)))


def columns(number: int) -> list[int]:
    """What each digit stands for, units first: 248 is [8, 40, 200], -42 is [-2, -40]."""
    sign = -1 if number < 0 else 1
    return [sign * int(digit) * 10**place for place, digit in enumerate(reversed(str(abs(number))))]
