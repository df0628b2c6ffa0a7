"""Plausible wrong answers to arithmetic questions, and rankings of them."""

from __future__ import annotations

from random import Random

EXTRA_ERRORS = (2, 9, 11, 5, 20, 100)
"""Errors besides 1 and 10, for questions that need many wrong answers."""
MAX_CANDIDATES = 1 + 2 + len(EXTRA_ERRORS)
"""Number of different answers, the correct one included, that exist for every question."""


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
