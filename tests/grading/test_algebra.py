"""sympy decides sums and integrals with symbolic bounds and powers of matrices, in bounded time."""

from __future__ import annotations

import time

import pytest

from rlmods.grading.grader import Rules, same_answer
from rlmods.grading.grader.algebra import LIMIT_S, graded

A = r"\begin{pmatrix}2&1\\1&1\end{pmatrix}"
B = r"\begin{pmatrix}1&-1\\-1&2\end{pmatrix}"
SAME = [  # gold, answer
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    (r"\sum_{k=1}^{n} k^2", r"\frac{n(n+1)(2n+1)}{6}"),
    (r"\sum_{k=1}^n k^3", r"\frac{n^2(n+1)^2}{4}"),
    (r"\sum_{k=1}^{n} (2k-1)", "n^2"),
    (r"\sum_{k=0}^{n} 2^k", "2^{n+1}-1"),
    (r"\sum_{k=1}^{n} \frac{1}{k(k+1)}", r"\frac{n}{n+1}"),
    (r"\prod_{k=1}^{n} k", "n!"),
    (r"\int_0^a x^2 dx + \sum_{k=1}^n k", r"\frac{a^3}{3}+\frac{n(n+1)}{2}"),
    (rf"{A}^{{-1}}", B),
    (rf"{A}^2", r"\begin{pmatrix}5&3\\3&2\end{pmatrix}"),
]
DIFFERENT = [
    (r"\sum_{k=1}^{n} k", r"\frac{n(n-1)}{2}"),
    (r"\sum_{k=1}^{n} k^2", r"\frac{n(n+1)(2n-1)}{6}"),
    (r"\sum_{k=1}^n k^3", r"\frac{n^2(n+1)}{4}"),
    (r"\sum_{k=1}^{n} (2k-1)", "n^2+1"),
    (r"\sum_{k=0}^{n} 2^k", "2^{n}-1"),
    (r"\prod_{k=1}^{n} k", "(n+1)!"),
    (rf"{A}^{{-1}}", A),
    (rf"{A}^2", r"\begin{pmatrix}4&1\\1&1\end{pmatrix}"),
    (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"),  # leaves the work to the reader
    (B, rf"{A}^{{-1}}"),
    ("3", r"\sin^2(10^7)+\cos^2(10^7)+2"),
]
HEAVY = [
    r"\sum_{k=1}^{n} \sin(k^2) \ln(k) e^{k}",
    r"\int_0^a \sin(\cos(x^3)) e^{x^2} dx",
    r"\sum_{k=1}^{n} k^{200}",
    r"\prod_{k=1}^{n} (k^7+k+1)",
    r"\sum_{k=1}^{n} (k!)!",
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_only_sympy_decides(gold: str, answer: str) -> None:
    assert not same_answer(answer, gold)
    assert graded(answer, gold) == "sympy"
    assert graded(answer, gold, Rules(sympy=False)) is False


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_what_looks_alike_is_refused(gold: str, answer: str) -> None:
    assert graded(answer, gold) is False


@pytest.mark.parametrize("gold", HEAVY)
def test_sympy_has_a_deadline(gold: str) -> None:
    start = time.monotonic()
    assert graded("n^2+a", gold) in (False, "sympy timeout")
    assert time.monotonic() - start < LIMIT_S + 4
