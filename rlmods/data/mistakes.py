"""Plausible wrong answers to arithmetic questions, and rankings of them."""

from __future__ import annotations

from random import Random

EXTRA_ERRORS = (2, 9, 11, 5, 20, 100)
"""Errors besides 1 and 10, for questions that need many wrong answers."""
MAX_CANDIDATES = 1 + 2 + len(EXTRA_ERRORS)
"""Number of different answers, the correct one included, that exist for every question."""


def mistakes(answer: int) -> list[int]:
    """Return wrong answers: off by one, off by ten, or with the last two digits swapped."""
    sign, digits = (-1 if answer < 0 else 1), str(abs(answer))
    swapped = sign * int(digits[:-2] + digits[:-3:-1])
    return [x for x in (answer - 1, answer + 1, answer - 10, answer + 10, swapped) if x != answer]


def ranked_candidates(answer: int, num_candidates: int, rng: Random) -> tuple[list[int], list[int]]:
    """Return the answer among different wrong ones of the same sign, in random order, and their
    ranks: 0 for the correct one, then by distance from it, equal distances tied. A single candidate
    is correct (0) half of the time, else wrong (1)."""
    near, num_wrong = mistakes(answer), max(num_candidates, 2) - 1
    if num_wrong > len(wrong := _same_sign(answer, near)):
        wrong = _same_sign(
            answer, [*near, *(answer + sign * error for error in EXTRA_ERRORS for sign in (1, -1))]
        )
    candidates = [answer, *rng.sample(wrong, num_wrong)]
    rng.shuffle(candidates)
    distances = sorted({abs(x - answer) for x in candidates})
    return candidates[:num_candidates], [
        distances.index(abs(x - answer)) for x in candidates[:num_candidates]
    ]


def _same_sign(answer: int, wrong: list[int]) -> list[int]:
    return [x for x in dict.fromkeys(wrong) if (x < 0) == (answer < 0)]
