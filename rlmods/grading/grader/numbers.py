"""Arithmetic on exact rationals and 100-digit numbers, and on matrices of them, in bounded time and
space."""

import math
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped, unused-ignore]

from rlmods.grading.grader.syntax import Node, ParseError, word_set

Value = Any
"""A Fraction, a 100-digit real or complex number (mpmath), or a tuple of rows of those."""

DIGITS = 100
"""Precision. Golds like (2+sqrt 3)^50 + (2-sqrt 3)^50 differ from a wrong answer only after the
57th digit."""
MAX_BITS = 40_000
MAX_FACTORIAL = 2_000
MAX_STEPS = 40_000
"""Steps per comparison, over all its members and points. Functions and long numbers count for
several steps."""


class TooLarge(ParseError):  # noqa: N818
    """Evaluating the expression would exceed a size limit."""


class Undefined(ParseError):  # noqa: N818
    """The expression has no value: a division by zero, a set in a sum, a series with a symbolic
    bound."""


class _Thread(threading.local):
    """100-digit arithmetic, which threads must not share, and the budget of a comparison."""

    def __init__(self) -> None:
        self.mp = MPContext()
        self.mp.dps = DIGITS
        self.reset()

    def reset(self) -> None:
        self.digits = DIGITS
        """Digits to which values are known, of which `close` compares 15 less."""
        self.steps = MAX_STEPS
        """Steps that are left."""
        self.constants: dict[Node, Value] = {}
        """Values of sums, products and integrals without symbols, which are the same at every
        point."""


THREAD = _Thread()


def spend(steps: int) -> None:
    """Deduct `steps` from the budget. Raises TooLarge when it is exhausted."""
    THREAD.steps -= steps
    if THREAD.steps < 0:
        raise TooLarge("too many steps")


def mp() -> Any:
    """Return this thread's 100-digit arithmetic."""
    return THREAD.mp


def as_mp(value: Value) -> Any:
    return mp().mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def is_integer(value: Value) -> bool:
    return isinstance(value, Fraction) and value.denominator == 1


def is_real(value: Value) -> bool:
    if isinstance(value, Fraction):
        return True
    if isinstance(value, tuple) or mp().isnan(value):
        return False
    return bool(abs(value.imag) <= mp().mpf(10) ** (10 - DIGITS) * max(1, abs(value.real)))


def close(first: Value, second: Value) -> bool:
    """Return True if equal: exactly for rationals, otherwise to 85 of the 100 digits (to within
    1e-90 of a zero)."""
    if isinstance(first, tuple) or isinstance(second, tuple):
        same_shape = isinstance(first, type(second)) and len(first) == len(second)
        return same_shape and all(map(close, first, second))
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    a = as_mp(first)
    b = as_mp(second)
    if mp().isinf(a) or mp().isinf(b):
        return bool(a == b)
    tolerance = mp().mpf(10) ** -THREAD.digits
    size = max(abs(a), abs(b)) * 10**15 if a != 0 and b != 0 else 10**10
    return bool(abs(a - b) <= size * tolerance)


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def add(a: Value, b: Value) -> Value:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(map(add, a, b))
    if isinstance(a, tuple) or isinstance(b, tuple):
        raise Undefined("a sum of a matrix and something else")
    return a + b if isinstance(a, Fraction) and isinstance(b, Fraction) else as_mp(a) + as_mp(b)


def multiply(a: Value, b: Value) -> Value:
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a[0]) != len(b):
            raise Undefined("a product of matrices whose sizes do not fit")
        columns = list(zip(*b, strict=True))
        return tuple(_row_product(row, columns) for row in a)
    if isinstance(b, tuple):
        return multiply(b, a)
    if isinstance(a, tuple):
        return tuple(multiply(entry, b) for entry in a)
    return a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else as_mp(a) * as_mp(b)


def _row_product(row: Sequence[Value], columns: Sequence[Sequence[Value]]) -> Value:
    return tuple(reduce(add, map(multiply, row, column)) for column in columns)


def divide(a: Value, b: Value) -> Value:
    return a / b if isinstance(a, Fraction) and isinstance(b, Fraction) else as_mp(a) / as_mp(b)


def power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and is_integer(exponent):
        if base == 0 and exponent <= 0:
            raise Undefined("0 to a power that is not positive")
        if bits(base) * abs(exponent) > MAX_BITS:
            raise TooLarge("power")
        return base ** int(exponent)
    a = as_mp(base)
    b = as_mp(exponent)
    if a == 0:
        return mp().zero
    if abs(b) * (1 + abs(mp().log(abs(a)))) > MAX_BITS:
        raise TooLarge("power")
    return mp().power(a, b)


def limit_power(base: Value, exponent: Value) -> Value:
    """Return the power, 0 below 10^-400 and infinity above 10^400, as in the tail of an
    integrand."""
    if is_real(base) and is_real(exponent) and as_mp(base).real > 0:
        size = as_mp(exponent).real * mp().log(as_mp(base).real)
        if abs(size) > 1000:
            return mp().zero if size < 0 else mp().inf
    return power(base, exponent)


def function(name: str, args: Sequence[Value]) -> Value:
    """Return the value of a named function. Raises TypeError for a wrong number of arguments."""
    if name in _EXACT:
        return _EXACT[name](*args)
    analytic = "a" + name.removeprefix("arc") if name.startswith("arc") else name
    x = as_mp(args[0])
    if analytic not in _ANALYTIC or abs(x) > 10**6:
        raise Undefined(name)
    return getattr(mp(), analytic)(x)


def _log(x: Value, base: Value = None) -> Value:
    if x == 0:
        raise Undefined("log 0")
    return mp().log(as_mp(x)) / (1 if base is None else mp().log(as_mp(base)))


def _common(combine: Callable[..., int], args: Sequence[Value]) -> Fraction:
    if not all(map(is_integer, args)):
        raise Undefined("a divisor or multiple of numbers that are not integers")
    return Fraction(combine(*map(int, args)))


def _factorial(x: Value) -> Value:
    if abs(x) > MAX_FACTORIAL:
        raise TooLarge("factorial")
    if not is_integer(x) or x < 0:
        raise Undefined("factorial of a number that is not whole")
    return Fraction(math.factorial(int(x)))


def _binomial(n: Value, k: Value) -> Value:
    if not is_integer(n) or not is_integer(k) or not 0 <= k <= n:
        raise Undefined("binomial of numbers that are not whole")
    if n > 10**6 or min(k, n - k) > MAX_FACTORIAL:
        raise TooLarge("binomial")
    return Fraction(math.comb(int(n), int(k)))


def _root(x: Value, degree: Value = Fraction(2)) -> Value:
    """Return the real root if there is one, exact if it is rational."""
    if not is_integer(degree) or not 1 <= degree <= 1000:
        return power(x, divide(Fraction(1), degree))
    n = int(degree)
    if is_real(x) and n % 2 and as_mp(x).real < 0:
        return -_root(-x, degree)
    root = mp().root(as_mp(x), n)
    if isinstance(x, Fraction) and x >= 0:
        top, bottom = (int(mp().nint(mp().root(part, n))) for part in x.as_integer_ratio())
        guess = Fraction(top, bottom)
        if bits(guess) * n <= MAX_BITS and guess**n == x:
            return guess
    return root


_EXACT: dict[str, Callable[..., Value]] = {
    "abs": abs,
    "!": _factorial,
    "binom": _binomial,
    "min": lambda *args: min(args),
    "max": lambda *args: max(args),
    "gcd": lambda *args: _common(math.gcd, args),
    "lcm": lambda *args: _common(math.lcm, args),
    "sqrt": _root,
    "exp": lambda x: power(mp().e + 0, x),
    "ln": _log,
    "log": _log,
    "lg": lambda x: _log(x, Fraction(10)),
}
_ANALYTIC = word_set("sin cos tan cot sec csc sinh cosh tanh asin acos atan asec acsc acot")
