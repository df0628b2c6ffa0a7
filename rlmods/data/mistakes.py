"""Answers that a sloppy calculator gives, and rankings of them."""

from __future__ import annotations

from random import Random

FURTHER = (2, 9, 11, 5, 20, 100)
"""Errors beside 1 and 10, where a question needs many wrong answers."""
MOST = 1 + 2 + len(FURTHER)
"""Different answers to any question, the right one included."""


def mistakes(answer: int) -> list[int]:
    """Off by one, off by ten, or the last two digits swapped."""
    sign, digits = (-1 if answer < 0 else 1), str(abs(answer))
    swapped = sign * int(digits[:-2] + digits[:-3:-1])
    return [x for x in (answer - 1, answer + 1, answer - 10, answer + 10, swapped) if x != answer]


def ranked(answer: int, num_candidates: int, rng: Random) -> tuple[list[int], list[int]]:
    """The answer among different wrong ones of its sign, in random order, and their ranks: 0 for the right one, then by distance from it,
    equal distances tied. Of a single candidate, half are right (0) and half wrong (1)."""
    near, wrong = mistakes(answer), max(num_candidates, 2) - 1
    if wrong > len(pool := _of_one_sign(answer, near)):
        pool = _of_one_sign(answer, [*near, *(answer + sign * error for error in FURTHER for sign in (1, -1))])
    stated = [answer, *rng.sample(pool, wrong)]
    rng.shuffle(stated)
    distances = sorted({abs(x - answer) for x in stated})
    return stated[:num_candidates], [distances.index(abs(x - answer)) for x in stated[:num_candidates]]


def _of_one_sign(answer: int, wrong: list[int]) -> list[int]:
    return [x for x in dict.fromkeys(wrong) if (x < 0) == (answer < 0)]
