"""sympy decides sums, products and integrals with symbolic bounds, determinants, powers and inverses
of matrices, in bounded time."""

import time

import pytest

from rlmods.grading.grader import Rules, same_answer
from rlmods.grading.grader.algebra import LIMIT_S, graded

CASES = [  # gold, answer, another answer that looks like it
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", r"\frac{n(n-1)}{2}"),
    (r"\sum_{k=1}^{n} k^2", r"\frac{n(n+1)(2n+1)}{6}", r"\frac{n(n+1)(2n-1)}{6}"),
    (r"\sum_{k=1}^n k^3", r"\frac{n^2(n+1)^2}{4}", r"\frac{n^2(n+1)}{4}"),
    (r"\sum_{k=1}^{n} (2k-1)", "n^2", "n^2+1"),
    (r"\sum_{k=0}^{n} 2^k", "2^{n+1}-1", "2^{n}-1"),
    (r"\sum_{k=1}^{n} 3^k", r"\frac{3^{n+1}-3}{2}", r"\frac{3^{n+1}-1}{2}"),
    (r"\sum_{k=1}^{n} \frac{1}{k(k+1)}", r"\frac{n}{n+1}", r"\frac{n+1}{n}"),
    (
        r"\sum_{k=1}^{n} \frac{1}{k(k+2)}",
        r"\frac{3}{4}-\frac{2n+3}{2(n+1)(n+2)}",
        r"\frac{3}{4}-\frac{2n+1}{2(n+1)(n+2)}",
    ),
    (r"\sum_{k=1}^{n} k(k+1)", r"\frac{n(n+1)(n+2)}{3}", r"\frac{n(n+1)(n+2)}{6}"),
    (r"\sum_{k=1}^{n} k 2^k", "(n-1)2^{n+1}+2", "(n-1)2^{n}+2"),
    (r"\sum_{k=1}^{n} (4k-3)", "n(2n-1)", "n(2n+1)"),
    (r"\sum_{k=n}^{2n} k", r"\frac{3n(n+1)}{2}", r"\frac{3n(n-1)}{2}"),
    (r"\sum_{k=0}^{n-1} (a+kd)", r"na+\frac{n(n-1)d}{2}", r"na+\frac{n(n+1)d}{2}"),
    (r"\sum_{k=1}^{n} c", "cn", "c^n"),
    (
        r"\sum_{k=1}^{n} k^4",
        r"\frac{n(n+1)(2n+1)(3n^2+3n-1)}{30}",
        r"\frac{n(n+1)(2n+1)(3n^2+3n+1)}{30}",
    ),
    (r"\sum_{k=0}^{n} \frac{1}{2^k}", "2-2^{-n}", "2-2^{1-n}"),
    (r"\sum_{k=1}^{n} (k^2-k)", r"\frac{n(n^2-1)}{3}", r"\frac{n(n^2+1)}{3}"),
    (r"\sum_{k=1}^{n} \frac{1}{(2k-1)(2k+1)}", r"\frac{n}{2n+1}", r"\frac{n}{2n-1}"),
    (r"\sum_{k=1}^{m} (3k+2)", r"\frac{m(3m+7)}{2}", r"\frac{m(3m+5)}{2}"),
    (r"\sum_{i=1}^{n} \sum_{j=1}^{i} j", r"\frac{n(n+1)(n+2)}{6}", r"\frac{n(n+1)(n+2)}{3}"),
    (r"\sum_{k=0}^{n} \binom{n}{k}", "2^n", "2^{n-1}"),
    (r"\sum_{k=1}^{n} k\cdot k!", "(n+1)!-1", "n!-1"),
    (r"\sum_{k=0}^{n} x^k y", r"y\sum_{j=0}^{n} x^j", r"y\sum_{j=1}^{n} x^j"),
    (r"\sum_{k=1}^{n} (6k^2-2)", "n(2n^2+3n-1)", "n(2n^2+3n+1)"),
    (r"\sum_{k=0}^{n} (-1)^k", r"\frac{1+(-1)^n}{2}", r"\frac{1-(-1)^n}{2}"),
    (r"\sum_{k=1}^{2n} (-1)^k k", "n", "-n"),
    (r"\sum_{k=0}^{n} k\binom{n}{k}", "n2^{n-1}", "n2^{n}"),
    (r"\sum_{k=1}^{n} \frac{k}{(k+1)!}", r"1-\frac{1}{(n+1)!}", r"1-\frac{1}{n!}"),
    (r"\sum_{j=1}^{n}\sum_{k=1}^{n} jk", r"\frac{n^2(n+1)^2}{4}", r"\frac{n^2(n+1)^2}{2}"),
    (r"\sum_{k=1}^{n} (ak+b)", r"\frac{an(n+1)}{2}+bn", r"\frac{an(n+1)}{2}+b"),
    (r"\sum_{k=3}^{n} k", r"\frac{n(n+1)}{2}-3", r"\frac{n(n+1)}{2}-2"),
    (r"\prod_{k=1}^{n} k", "n!", "(n+1)!"),
    (r"\prod_{k=1}^{n} 2k", "2^n n!", "2n!"),
    (r"\prod_{k=1}^{n} \frac{k+1}{k}", "n+1", "n"),
    (r"\prod_{k=2}^{n} \left(1-\frac{1}{k}\right)", r"\frac{1}{n}", r"\frac{1}{n+1}"),
    (r"\prod_{k=2}^{n} \left(1-\frac{1}{k^2}\right)", r"\frac{n+1}{2n}", r"\frac{n-1}{2n}"),
    (r"\prod_{k=1}^{n} 3", "3^n", "3n"),
    (r"\prod_{k=1}^{n} 2^k", "2^{n(n+1)/2}", "2^{n(n-1)/2}"),
    (r"\prod_{k=1}^{n} \frac{k}{k+2}", r"\frac{2}{(n+1)(n+2)}", r"\frac{1}{(n+1)(n+2)}"),
    (r"\prod_{k=1}^{n} x", "x^n", "nx"),
    (r"\prod_{k=1}^{n} (k+1)", "(n+1)!", "n!"),
    (r"\prod_{k=1}^{n} \frac{2k}{k+1}", r"\frac{2^n}{n+1}", r"\frac{2^n}{n}"),
    (r"\prod_{j=1}^{n}\prod_{k=1}^{n} 2", "2^{n^2}", "2^{2n}"),
    (
        r"\int_0^a x^2 dx + \sum_{k=1}^n k",
        r"\frac{a^3}{3}+\frac{n(n+1)}{2}",
        r"\frac{a^3}{3}+\frac{n(n-1)}{2}",
    ),
    (r"\int_0^{t} \sum_{k=1}^{n} k x dx", r"\frac{n(n+1)t^2}{4}", r"\frac{n(n+1)t^2}{2}"),
    (r"\sum_{k=1}^{n}\int_0^{1} kx dx", r"\frac{n(n+1)}{4}", r"\frac{n(n+1)}{2}"),
    (r"\sum_{k=1}^{n}\int_0^{k} x dx", r"\frac{n(n+1)(2n+1)}{12}", r"\frac{n(n+1)(2n+1)}{6}"),
    (r"\sum_{k=0}^{n}\int_0^{1} (k+1)x^k dx", "n+1", "n"),
    (
        r"\begin{pmatrix}2&1\\1&1\end{pmatrix}^{-1}",
        r"\begin{pmatrix}1&-1\\-1&2\end{pmatrix}",
        r"\begin{pmatrix}2&1\\1&1\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}2&1\\1&1\end{pmatrix}^2",
        r"\begin{pmatrix}5&3\\3&2\end{pmatrix}",
        r"\begin{pmatrix}4&1\\1&1\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}2&1\\1&1\end{pmatrix}^3",
        r"\begin{pmatrix}13&8\\8&5\end{pmatrix}",
        r"\begin{pmatrix}13&8\\5&8\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}1&1\\0&1\end{pmatrix}^5",
        r"\begin{pmatrix}1&5\\0&1\end{pmatrix}",
        r"\begin{pmatrix}1&1\\0&1\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}a&0\\0&b\end{pmatrix}^2",
        r"\begin{pmatrix}a^2&0\\0&b^2\end{pmatrix}",
        r"\begin{pmatrix}2a&0\\0&2b\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}a&0\\0&b\end{pmatrix}^{-1}",
        r"\begin{pmatrix}\frac{1}{a}&0\\0&\frac{1}{b}\end{pmatrix}",
        r"\begin{pmatrix}-a&0\\0&-b\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}1&x\\0&1\end{pmatrix}^3",
        r"\begin{pmatrix}1&3x\\0&1\end{pmatrix}",
        r"\begin{pmatrix}1&x^3\\0&1\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{-1}",
        r"\begin{pmatrix}-2&1\\\frac{3}{2}&-\frac{1}{2}\end{pmatrix}",
        r"\begin{pmatrix}4&-2\\-3&1\end{pmatrix}",
    ),
    (
        r"\begin{pmatrix}\cos{t}&-\sin{t}\\\sin{t}&\cos{t}\end{pmatrix}^2",
        r"\begin{pmatrix}\cos{2t}&-\sin{2t}\\\sin{2t}&\cos{2t}\end{pmatrix}",
        r"\begin{pmatrix}\cos^2{t}&\sin^2{t}\\\sin^2{t}&\cos^2{t}\end{pmatrix}",
    ),
    (r"\begin{vmatrix}a&b\\c&d\end{vmatrix}", "ad-bc", "ad+bc"),
    (r"\begin{vmatrix}1&x\\1&y\end{vmatrix}", "y-x", "x-y"),
    (r"\begin{vmatrix}x&1\\1&x\end{vmatrix}", "x^2-1", "x^2+1"),
    (
        r"\begin{vmatrix}1&a&a^2\\1&b&b^2\\1&c&c^2\end{vmatrix}",
        "(b-a)(c-a)(c-b)",
        "(a-b)(c-a)(c-b)",
    ),
    (r"\det\begin{pmatrix}1&2&3\\0&x&4\\0&0&y\end{pmatrix}", "xy", "x+y"),
    (r"\begin{vmatrix}2&1\\x&3\end{vmatrix}", "6-x", "6+x"),
    (r"\det\begin{pmatrix}a&b\\c&d\end{pmatrix}^2", "(ad-bc)^2", "a^2d^2-b^2c^2"),
]
DIFFERENT = [
    (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"),  # leaves the work to the reader
    (r"\begin{pmatrix}1&-1\\-1&2\end{pmatrix}", r"\begin{pmatrix}2&1\\1&1\end{pmatrix}^{-1}"),
    ("3", r"\sin^2(10^7)+\cos^2(10^7)+2"),
    ("ad-bc", r"\begin{vmatrix}a&b\\c&d\end{vmatrix}"),
    (r"\begin{vmatrix}1&x\\1&y\end{vmatrix}", "-2"),
]
HEAVY = [
    r"\sum_{k=1}^{n} \sin(k^2) \ln(k) e^{k}",
    r"\int_0^a \sin(\cos(x^3)) e^{x^2} dx",
    r"\sum_{k=1}^{n} k^{200}",
    r"\prod_{k=1}^{n} (k^7+k+1)",
    r"\sum_{k=1}^{n} (k!)!",
]


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "answer", "other"), CASES)
def test_only_sympy_decides(gold: str, answer: str, other: str) -> None:
    assert not same_answer(answer, gold)
    assert graded(answer, gold) == "sympy"
    assert graded(answer, gold, Rules(sympy=False)) is False
    assert graded(other, gold) is False


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_what_looks_alike_is_refused(gold: str, answer: str) -> None:
    assert graded(answer, gold) is False


# The alarm may fall in hypothesis's callback of the garbage collector, where Python prints it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("gold", HEAVY)
def test_sympy_has_a_deadline(gold: str) -> None:
    start = time.monotonic()
    assert graded("n^2+a", gold) in (False, "sympy timeout")
    assert time.monotonic() - start < LIMIT_S + 4
