"""Definite integrals and sums of infinitely many terms, by numerical methods with a bounded number
of evaluations.

Values are correct to `CALCULUS_DIGITS` digits, which decides between closed forms as surely as a
computer algebra system does, and needs no process of its own: the evaluations spend the budget of
`evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rlmods.grading.grader.numbers import Undefined, Value, as_mp, mp, set_digits

CALCULUS_DIGITS = 50
"""Precision of the arithmetic, higher than that of the results, as integrands lose digits near
their singularities."""
RESULT_DIGITS = 37
"""Digits of a result, of which `close` compares 15 less."""
MAX_TERMS = 150
"""Terms of which a sum is extrapolated."""
_TOLERANCE_DIGITS = 22
_SHIFT = 7
"""Terms that are summed one by one to check an extrapolated sum."""


def integral(function: Callable[[Any], Any], low: Value, high: Value) -> Value:
    """Return the integral of `function` from low to high by tanh-sinh quadrature. Raises Undefined
    if it is not found to 22 digits."""
    with mp().workdps(CALCULUS_DIGITS):
        value, error = mp().quad(function, [as_mp(low), as_mp(high)], error=True, maxdegree=7)
        _check(value, error)
    set_digits(RESULT_DIGITS)
    return value


def infinite_sum(term: Callable[[Any], Any], start: Fraction) -> Value:
    """Return the sum of `term` from `start` on by extrapolation of partial sums.

    Raises Undefined unless the terms vanish and two extrapolations agree: a divergent series has no
    value, also where a summation method gives it one."""
    with mp().workdps(CALCULUS_DIGITS):
        first, infinity = as_mp(start), mp().inf
        far, farther = abs(term(first + 400)), abs(term(first + 1600))
        if not (farther < mp().mpf("0.1") and (farther < far or farther == 0)):
            raise Undefined("the terms of a series do not vanish")
        value = mp().nsum(term, [first, infinity], maxterms=MAX_TERMS)
        rest = mp().nsum(term, [first + _SHIFT, infinity], maxterms=MAX_TERMS)
        _check(value, abs(value - rest - sum((term(first + k) for k in range(_SHIFT)), mp().zero)))
    set_digits(RESULT_DIGITS)
    return value


def _check(value: Any, error: Any) -> None:
    if not mp().isfinite(value) or not abs(error) <= mp().mpf(10) ** -_TOLERANCE_DIGITS * max(
        1, abs(value)
    ):
        raise Undefined("an integral or a sum that does not converge")
