"""Parts of generated arithmetic: the split of a question, wrong answers and rankings of them, and
worked solutions, digit by digit, for process reward models."""

import hashlib
import re
from itertools import zip_longest
from operator import add, mul, sub
from random import Random

VAL_SHARE = 5
EXTRA_ERRORS = (2, 9, 11, 5, 20, 100)
"""Errors besides 1 and 10, for questions that need many wrong answers."""
MAX_CANDIDATES = 1 + 2 + len(EXTRA_ERRORS)
"""Number of different answers, the correct one included, that exist for every question."""
OPERATIONS = {"+": add, "-": sub, "*": mul}
ERRORS = (-10, -1, 1, 10)
QUESTION = re.compile(r"\(?(\d+)([-+*])(\d+)\)?(?:\*(\d+))?")


def split_of(question: str) -> str:
    """Return "val" for one in `VAL_SHARE` questions, by a hash, else "train"."""
    return "train" if hashlib.sha256(question.encode()).digest()[0] % VAL_SHARE else "val"


def mistakes(answer: int) -> list[int]:
    """Return wrong answers: off by one, off by ten, or with the last two digits swapped."""
    sign = -1 if answer < 0 else 1
    digits = str(abs(answer))
    swapped = sign * int(digits[:-2] + digits[:-3:-1])
    return [x for x in (answer - 1, answer + 1, answer - 10, answer + 10, swapped) if x != answer]


def ranked_candidates(answer: int, num_candidates: int, rng: Random) -> tuple[list[int], list[int]]:
    """Return the answer among different wrong ones of the same sign, in random order, and their
    ranks: 0 for the correct one, then by distance from it, equal distances tied. A single candidate
    is correct (0) half of the time, else wrong (1)."""
    near = mistakes(answer)
    num_wrong = max(num_candidates, 2) - 1
    wrong = _same_sign(answer, near)
    if num_wrong > len(wrong):
        for error in EXTRA_ERRORS:
            near += [answer + error, answer - error]
        wrong = _same_sign(answer, near)
    candidates = [answer, *rng.sample(wrong, num_wrong)]
    rng.shuffle(candidates)
    distances = [abs(x - answer) for x in candidates]
    ranks = [sorted(set(distances)).index(distance) for distance in distances]
    return candidates[:num_candidates], ranks[:num_candidates]


def _same_sign(answer: int, wrong: list[int]) -> list[int]:
    return [x for x in dict.fromkeys(wrong) if (x < 0) == (answer < 0)]


def worked_solution(
    question: str, wrong_step: int | None = None, error: int = 0
) -> tuple[str, ...]:
    """Return the steps that solve `a op b` or `(a op b)*c` with operands of at least 0, one line
    each, and the answer last.

    Sums and differences are taken digit by digit, products by the digits of the left factor; the
    terms are then added up from the largest on: 37+48 becomes 7+8=15, 30+40=70, 70+15=85. Step
    number `wrong_step` is off by `error`. The steps after it continue from its wrong result: each
    is correct in itself, but the answer is wrong."""
    lines: list[str] = []

    def write(x: int, operator: str, y: int) -> int:
        value = int(OPERATIONS[operator](x, y)) + (error if len(lines) == wrong_step else 0)
        lines.append(f"{x}{operator}{y}={value}\n")
        return value

    def solve(x: int, operator: str, y: int) -> int:
        if operator == "*":
            terms = [write(digit_value, "*", y) for digit_value in place_values(x)]
        else:
            terms = [
                write(a, operator, b)
                for a, b in zip_longest(place_values(x), place_values(y), fillvalue=0)
            ]
        value = terms.pop()
        while terms:
            term = terms.pop()
            value = write(value, "-" if term < 0 else "+", abs(term))
        return value

    match = QUESTION.fullmatch(question)
    assert match is not None
    a, operator, b, factor = match.groups()
    value = solve(int(a), operator, int(b))
    if factor is not None:
        value = solve(value, "*", int(factor))
    return (*lines, f"<answer>{value}</answer>")


def solution_with_error(question: str, rng: Random) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return a solution with one wrong step, and its step labels: 1 before that step, 0 from it
    on."""
    wrong_step = rng.randrange(len(worked_solution(question)) - 1)
    steps = worked_solution(question, wrong_step, rng.choice(ERRORS))
    return steps, tuple(float(i < wrong_step) for i in range(len(steps)))


def place_values(number: int) -> list[int]:
    """Return the place value of each digit, units first: 248 is [8, 40, 200], -42 is [-2, -40]."""
    sign = -1 if number < 0 else 1
    return [
        sign * int(digit) * 10**exponent
        for exponent, digit in enumerate(reversed(str(abs(number))))
    ]
