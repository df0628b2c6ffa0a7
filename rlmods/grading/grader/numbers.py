"""Arithmetic on exact rationals and 100-digit numbers, and on matrices of them, in bounded time and
space."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import Any

from rlmods.grading.grader.tokens import ParseError

Value = Any
"""A Fraction, a 100-digit real or complex number (mpmath), or a tuple of rows of those."""

DIGITS = 100
"""Precision. Golds like (2+sqrt 3)^50 + (2-sqrt 3)^50 differ from a wrong answer only after the
57th digit."""
MAX_BITS = 40_000
MAX_FACTORIAL = 2_000
_ANALYTIC = frozenset(
    (
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "asec",
        "acsc",
        "acot",
    )
)
_threads = threading.local()


class TooLarge(ParseError):  # noqa: N818
    """Evaluating the expression would exceed a size limit."""


class Undefined(ParseError):  # noqa: N818
    """The expression has no value: a division by zero, a set in a sum, a series with a symbolic
    bound."""


def mp() -> Any:
    """Return this thread's 100-digit arithmetic: an mpmath context must not be shared between
    threads."""
    if not hasattr(_threads, "mp"):
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped, unused-ignore]

        _threads.mp = MPContext()
        _threads.mp.dps = DIGITS
    return _threads.mp


def as_mp(value: Value) -> Any:
    return mp().mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def close(first: Value, second: Value) -> bool:
    """Return True if equal: exactly for rationals, otherwise to 85 of the 100 digits (to within
    1e-90 of a zero)."""
    if isinstance(first, tuple) or isinstance(second, tuple):
        return (
            isinstance(first, tuple)
            and isinstance(second, tuple)
            and _close_matrices(first, second)
        )
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    a, b = as_mp(first), as_mp(second)
    if mp().isinf(a) or mp().isinf(b):
        return bool(a == b)
    digits = getattr(_threads, "digits", DIGITS)
    size = max(abs(a), abs(b)) * mp().mpf(10) ** (15 - digits)
    return bool(abs(a - b) <= (size if a != 0 and b != 0 else mp().mpf(10) ** (10 - digits)))


def set_digits(digits: int = DIGITS) -> None:
    """Set the digits to which values of this thread are known from now on, of which `close`
    compares 15 less."""
    _threads.digits = digits


def is_real(value: Value) -> bool:
    if isinstance(value, Fraction):
        return True
    if isinstance(value, tuple) or mp().isnan(value):
        return False
    return bool(abs(value.imag) <= mp().mpf(10) ** (10 - DIGITS) * max(1, abs(value.real)))


def _close_matrices(first: Value, second: Value) -> bool:
    same_shape = [len(row) for row in first] == [len(row) for row in second]
    return same_shape and all(
        close(a, b) for r, s in zip(first, second, strict=True) for a, b in zip(r, s, strict=True)
    )


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def scale(value: Value, by: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(tuple(scale(entry, by) for entry in row) for row in value)
    return (
        value * by
        if isinstance(value, Fraction) and isinstance(by, Fraction)
        else as_mp(value) * as_mp(by)
    )


def divide(a: Value, b: Value) -> Value:
    if b == 0:
        raise Undefined("division by zero")
    return a / b if isinstance(a, Fraction) and isinstance(b, Fraction) else as_mp(a) / as_mp(b)


def power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if base == 0 and exponent <= 0:
            raise Undefined("0 to a power that is not positive")
        if bits(base) * abs(exponent) > MAX_BITS:
            raise TooLarge("power")
        return base ** int(exponent)
    a, b = as_mp(base), as_mp(exponent)
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


def matrix_operation(op: str, a: Value, b: Value) -> Value:
    if op == "*" and isinstance(a, tuple) and isinstance(b, tuple) and len(a[0]) == len(b):
        columns = list(zip(*b, strict=True))
        return tuple(tuple(_dot(row, column) for column in columns) for row in a)
    if op == "*" and isinstance(a, tuple) != isinstance(b, tuple):
        return scale(a, b) if isinstance(a, tuple) else scale(b, a)
    if op == "/" and not isinstance(b, tuple):
        return scale(a, divide(Fraction(1), b))
    if (
        op == "+"
        and isinstance(a, tuple)
        and isinstance(b, tuple)
        and [len(r) for r in a] == [len(r) for r in b]
    ):
        return tuple(
            tuple(_dot((x, y), (Fraction(1), Fraction(1))) for x, y in zip(r, s, strict=True))
            for r, s in zip(a, b, strict=True)
        )
    raise Undefined("matrix operation")


def _dot(first: Any, second: Any) -> Value:
    products = [scale(x, y) for x, y in zip(first, second, strict=True)]
    if all(isinstance(product, Fraction) for product in products):
        return sum(products, Fraction(0))
    return sum((as_mp(product) for product in products), mp().zero)


def in_base(digits: str, base: Value) -> Fraction:
    if (
        not isinstance(base, Fraction)
        or base.denominator != 1
        or not 2 <= base <= 36
        or len(digits) > 100
    ):
        raise Undefined("base")
    return Fraction(int(digits, int(base)))


def function(name: str, args: list[Value]) -> Value:
    first = args[0]
    if name == "abs":
        return abs(first)
    if name in ("floor", "ceil"):
        if not is_real(first):
            raise Undefined(name)
        real = first if isinstance(first, Fraction) else first.real
        return Fraction(int(mp().floor(as_mp(real)) if name == "floor" else mp().ceil(as_mp(real))))
    if name == "!":
        return _factorial(first)
    if name == "binom":
        return _binomial(first, args[1])
    if name in ("min", "max") and all(isinstance(arg, Fraction) for arg in args):
        return (min if name == "min" else max)(args)
    if name in ("gcd", "lcm"):
        return _common(name, args)
    if name == "sqrt":
        return _root(first, args[1] if len(args) > 1 else Fraction(2))
    if name == "exp":
        return power(mp().e + 0, first)
    if name in ("log", "ln", "lg"):
        base = args[1] if len(args) > 1 else (mp().e if name != "lg" else Fraction(10))
        if first == 0:
            raise Undefined("log 0")
        return mp().log(as_mp(first)) / mp().log(as_mp(base))
    return _analytic(name, as_mp(first))


def _common(name: str, args: list[Value]) -> Fraction:
    """Return the greatest common divisor or the least common multiple of integers."""
    if not all(isinstance(arg, Fraction) and arg.denominator == 1 for arg in args):
        raise Undefined(name)
    value = Fraction((math.gcd if name == "gcd" else math.lcm)(*(int(arg) for arg in args)))
    if bits(value) > MAX_BITS:
        raise TooLarge(name)
    return value


def _analytic(name: str, x: Any) -> Value:
    names = {f"arc{f}": f"a{f}" for f in ("sin", "cos", "tan", "sec", "csc", "cot")}
    name = names.get(name, name)
    if name not in _ANALYTIC or abs(x) > 10**6:
        raise Undefined(name)
    return getattr(mp(), name)(x)


def _factorial(x: Value) -> Value:
    if isinstance(x, Fraction) and x.denominator == 1:
        if x < 0:
            raise Undefined("factorial of a negative number")
        if x > MAX_FACTORIAL:
            raise TooLarge("factorial")
        return Fraction(math.factorial(int(x)))
    if abs(x) > MAX_FACTORIAL:
        raise TooLarge("factorial")
    return mp().gamma(as_mp(x) + 1)


def _binomial(n: Value, k: Value) -> Value:
    if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1:
        if not 0 <= k <= n:
            return Fraction(0)
        if n > 10**6 or min(k, n - k) > MAX_FACTORIAL:
            raise TooLarge("binomial")
        return Fraction(math.comb(int(n), int(k)))
    return _factorial(n) / (_factorial(k) * _factorial(as_mp(n) - as_mp(k)))


def _root(x: Value, degree: Value) -> Value:
    """Return the real root if there is one, exact if it is rational."""
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 1 <= degree <= 1000:
        return power(x, divide(Fraction(1), degree))
    n = int(degree)
    if is_real(x) and n % 2 and as_mp(x).real < 0:
        return -_root(-x, degree)
    root = mp().root(as_mp(x), n)
    if isinstance(x, Fraction) and x >= 0:
        guess = Fraction(
            *(int(mp().nint(mp().root(mp().mpf(part), n))) for part in (x.numerator, x.denominator))
        )
        if bits(guess) * n <= MAX_BITS and guess**n == x:
            return guess
    return root
