"""Integrals and infinite sums, against closed forms, and within their budget."""

from __future__ import annotations

import time

import pytest

from rlmods.grading.grader import same_answer

EQUAL = [
    (r"\int_0^1 x^3 dx + x", "x + 1/4"),
    (r"\int_{0}^{\pi} \sin t \, \mathrm{d}t + x", "2 + x"),
    (r"\int_0^\infty e^{-x} dx + y", "y + 1"),
    (r"\int_0^1 \frac{1}{\sqrt{x}} dx + y", "y + 2"),
    (r"\int_0^1 ax^2 dx", r"\frac{a}{3}"),
    (r"\sum_{n=0}^{\infty} \frac{1}{2^n} + x", "2 + x"),
    (r"\sum_{n=1}^{\infty} \frac{1}{n(n+1)} + x", "1 + x"),
    (r"\sum_{n=0}^{\infty} \frac{(-1)^n}{2n+1}", r"\frac{\pi}{4}"),
    (r"\sum_{n=1}^{\infty} \frac{1}{n^4}", r"\frac{\pi^4}{90}"),
]
UNEQUAL = [
    (r"\int_0^1 x^3 dx + x", "x + 1/3"),
    (r"\int_0^1 \frac1x dx + x", "x"),
    (r"\sum_{n=1}^{\infty} \frac{1}{n^2}", r"\frac{\pi^2}{6} + 10^{-15}"),
    (r"\sum_{n=0}^{\infty} (-1)^n + x", r"\frac12 + x"),
    (r"\sum_{n=1}^{\infty} n + x", r"-\frac{1}{12} + x"),
    (r"\int_0^\infty \cos x \, dx + y", "y"),
]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_values(first: str, second: str) -> None:
    assert same_answer(first, second)
    assert same_answer(second, first)


@pytest.mark.parametrize(("first", "second"), UNEQUAL)
def test_other_values(first: str, second: str) -> None:
    assert not same_answer(first, second)
    assert not same_answer(second, first)


@pytest.mark.parametrize("inner", [r"\int_0^1 xy \, dy", r"\sum_{n=1}^\infty \frac{x}{n^2}"])
def test_integrals_inside_integrals_are_refused_at_once(inner: str) -> None:
    start = time.thread_time()
    assert not same_answer(rf"\int_0^1 {inner} \, dx + z", "z + 1/4")
    assert not same_answer(rf"\int_0^1 {inner} \, dx + z", r"z + \frac{\pi^2}{12}")
    assert time.thread_time() - start < 2.0
