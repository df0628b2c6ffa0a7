"""Comparison of answers: tables of equal and of different ones, and bounded time."""

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.grading.grader import CLOSED_FORMS, evaluate as evaluation, same_answer, same_plain
from rlmods.grading.grader.evaluate import evaluate
from rlmods.grading.grader.syntax import Node

SAME = [  # gold, answer
    ("5", "5.0"),
    ("no", "NO"),
    ("ODD", "odd"),
    ("1000", r"\$1,000.00"),
    ("12.5", r"12\frac12"),
    (r"2\frac{1}{3}", "7/3"),
    ("1/2", r"\frac12"),
    (r"0.1\overline{6}", "1/6"),
    (r"1.5\times10^{-3}", "0.0015"),
    ("250", "2.5e2"),
    (r"28\%", "28"),
    (r"28\%", "0.28"),
    ("0.28", r"28\%"),
    ("9", r"9\,\text{units}"),
    ("1320", "1320 km"),
    (r"5 \text{ cm}", "5 centimeters"),
    ("1/3", "0.333"),
    (r"\frac{\pi}{4}", "0.78540"),
    ("x = 11", "x = 5+6 = 11"),
    ("11", "x=11"),
    ("x=11", "11"),
    (r"\frac{x+1}{x-1}", r"f^{-1}(x)=\frac{x+1}{x-1}"),
    ("5", "2+3=5"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
    ("1,2,3", r"\{3, 2, 1\}"),
    (r"7\text{ or }11", "11, 7"),
    ("(1,2),(3,4)", r"(3,4) \text{ and } (1,2)"),
    (r"(3, \frac{\pi}{2})", r"\left(3, \pi/2\right)"),
    ("(100,200)", "(100, 200)"),
    ("[0,9)", r"0 \le x < 9"),
    (r"x \ge 0", r"[0,\infty)"),
    (r"(-\infty,1)\cup(1,\infty)", r"x \neq 1"),
    (r"[0,3]", r"\{1,2\} \cup [0,3]"),
    (r"\{2\}", r"\{1,2\} \cap \{2,3\}"),
    ("x < 1", "-x > -1"),
    ("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\frac12\begin{bmatrix}2&4\\6&8\end{bmatrix}"),
    ("S_1:S = 7:32", "14:64"),
    ("7:9", "14:18"),
    ("101_2", "101_{2}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\tan^2 y + 1", r"\sec^2 y"),
    (r"\ln 4", r"2\ln 2"),
    ("|x||y|", "|xy|"),
    ("x+385", r"\sum_{k=1}^{10} k^2 + x"),
    (r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}", r"F_n = \sum_{k=0}^{n-1} F_{n-k-1} F_k"),
    (r"\sqrt[3]{-8}", "-2"),
    ("B", r"\text{(B)}"),
    ("B", "B) 17"),
    (r"\text{Monday}", "monday"),
    (r"7^{2023}", r"7 \cdot 7^{2022}"),
    (r"0.1\overline{6}", r"0.1\bar{6}"),
    ("1/6", r"0.1\dot{6}"),
    ("33", "m+n=7+26=33"),
    (r"n \equiv 1 \pmod{4}", r"n\equiv 1 (\text{mod }4)"),
]
DIFFERENT = [
    ("5", "5.001"),
    ("5", "4.9999999"),
    ("5", "-5"),
    ("5", "5, 6"),
    ("5", "5 or 6"),
    ("5", "5t"),
    ("5", "x=x"),
    (r"\{1,\{2\}\}", r"\{1,2\}"),
    (r"\{1,2\}", r"\{1,\{2\}\}"),
    ("5", "6=5"),
    ("5", "5 million"),
    ("5", r"\phantom{5}6"),
    ("1/3", "0.3"),
    ("1/2", "0.501"),
    (r"\sqrt{2}", "1.415"),
    ("20", "0.2"),
    ("0.2", r"10\%"),
    (r"5 \text{ cm}", "5 m" + "eters"),
    ("x=1", "y=1"),
    ("2x+z=1", "1"),
    ("(1,2)", "(2,1)"),
    ("(0,9)", "[0,9)"),
    ("[1,9]", "[1,9)"),
    ("(1,9]", "[1,9]"),
    ("x>3", r"x \ge 3"),
    ("x>3", "x<3"),
    ("x < 1", "x > -1"),
    (r"\pm 2021", "2021"),
    ("101_2", "101_3"),
    ("3:4", "4:3"),
    ("x", r"\sqrt{x^2}"),
    ("x", "y"),
    ("x", "-x"),
    ("7^{2023}", "7^{2023}+1"),
    (r"\frac{\sqrt2}{2^{200}}", r"\frac{\sqrt2}{2^{201}}"),
    ("ACB", "ABC"),
    ("B", "A or B"),
    (r"\emptyset", "0"),
    ("1", r"\infty"),
    ("3x-y+13=0", "3x+4y+14=0"),
    ("", ""),
    ("1/6", r"0.1\bar{7}"),
    (r"\frac12", r"\frac12 \text{ or } 0.6"),
    (r"\{1,2\}", r"1 \text{ or } 1"),
    ("33", "m+n=7+25=33"),
    (r"n \equiv 1 \pmod{4}", r"n\equiv 1 (\text{mod }5)"),
]
SAME_LIMITS = [
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
OTHER_LIMITS = [
    (r"\int_0^1 x^3 dx + x", "x + 1/3"),
    (r"\int_0^1 \frac1x dx + x", "x"),
    (r"\sum_{n=1}^{\infty} \frac{1}{n^2}", r"\frac{\pi^2}{6} + 10^{-15}"),
    (r"\sum_{n=0}^{\infty} (-1)^n + x", r"\frac12 + x"),
    (r"\sum_{n=1}^{\infty} n + x", r"-\frac{1}{12} + x"),
    (r"\int_0^\infty \cos x \, dx + y", "y"),
]
HOSTILE = [
    r"99^{99^{99^{99}}}",
    r"1000000!",
    r"((((1000!)!)!)!)!",
    r"\prod_{k=1}^{10^9} k",
    r"\sum_{i=1}^{1000}\sum_{j=1}^{1000}\sum_{k=1}^{1000} ijk",
    r"\binom{10^9}{5\cdot10^8}",
    "1E+999999999999",
    "(" * 400,
    "|" * 800,
    r"\frac{" * 200 + "1" + "}{2}" * 200,
    r"\sin(" * 300 + "1" + ")" * 300,
    r"x^{x^{x^{x^{x}}}}",
    "9" * 1000,
    ",".join(["1"] * 400),
    "1/0",
    r"\begin{pmatrix}1&2\\3\end{pmatrix}",
    r"\def\x{\x\x}\x",
    "__import__('os').system('true')",
    r"\tan(10^{30000})",
    r"\lfloor 10^{9999} \pi \rfloor",
    "\x00\ud800",
]


def test_an_answer_with_other_unknowns_is_refuted_at_two_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = []

    def count(node: Any, point: int = 0) -> Any:
        points.append(point)
        return evaluate(node, point)

    monkeypatch.setattr("rlmods.grading.grader.values.evaluate", count)
    gold = r"\frac{\pi^2}{6}"
    assert not same_answer(r"\sum_{n=1}^\infty \frac{x}{n^2}", gold)
    assert set(points) <= {0, 1}


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_equal_answers(gold: str, answer: str) -> None:
    assert same_answer(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different_answers(gold: str, answer: str) -> None:
    assert not same_answer(answer, gold)


@pytest.mark.parametrize("salt", range(8))
@pytest.mark.parametrize(("gold", "answer"), [("x", "|x|"), ("x", r"\sqrt{x^2}"), ("xy", "|xy|")])
def test_no_process_takes_an_absolute_value_for_its_content(
    gold: str, answer: str, salt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_SALT", bytes([salt] * 16))
    assert not same_answer(answer, gold)


@pytest.mark.parametrize("salt", range(4))
@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\ln\frac{x}{y}", r"\ln x-\ln y"),
        (r"x\sqrt{x}", r"\sqrt{x^3}"),
        (r"3\ln x", r"\ln(x^3)"),
    ],
)
def test_laws_of_logarithms_and_roots_hold_in_every_process(
    gold: str, answer: str, salt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_SALT", bytes([salt] * 16))
    assert same_answer(answer, gold)


def test_the_gold_decides_whether_a_pair_is_a_point_or_an_interval() -> None:
    assert same_answer("(1,2)", gold="1<x<2")
    assert same_answer("1<x<2", gold="(1,2)")
    assert not same_answer(r"1<x\le2", gold="(1,2)")
    assert not same_answer("1<x<2", gold="(2,1)")
    assert not same_answer("[1,2]", gold="(1,2)")


@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_answers_are_wrong_and_graded_in_bounded_time(answer: str) -> None:
    start = time.process_time()
    for gold in ("1", "x^2", "(1,2)", "[0,1)", r"\begin{pmatrix}1&2\end{pmatrix}"):
        assert not same_answer(answer, gold)
    assert time.process_time() - start < 3


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(-999, 999), st.integers(1, 999))
def test_fractions_are_compared_exactly(a: int, b: int, c: int, d: int) -> None:
    gold = rf"\frac{{{c}}}{{{d}}}" if c >= 0 else rf"-\frac{{{-c}}}{{{d}}}"
    assert same_plain(f"{a}/{b}", gold, CLOSED_FORMS) is (a * d == b * c)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-9, 9))
@settings(deadline=None)
def test_a_polynomial_equals_its_horner_form_and_no_other(
    coefficients: list[int], shift: int
) -> None:
    plain = "+".join(f"({c})x^{{{power}}}" for power, c in enumerate(coefficients))
    horner = "0"
    for c in reversed(coefficients):
        horner = f"({horner})x+({c})"
    assert same_answer(horner, plain)
    assert same_answer(f"{horner}+({shift})", plain) is (shift == 0)


@pytest.mark.parametrize(("first", "second"), SAME_LIMITS)
def test_integrals_and_infinite_sums_are_compared_by_value(first: str, second: str) -> None:
    assert same_answer(first, second)
    assert same_answer(second, first)


@pytest.mark.parametrize(("first", "second"), OTHER_LIMITS)
def test_other_integrals_and_infinite_sums_differ(first: str, second: str) -> None:
    assert not same_answer(first, second)
    assert not same_answer(second, first)


@pytest.mark.parametrize("inner", [r"\int_0^1 xy \, dy", r"\sum_{n=1}^\infty \frac{x}{n^2}"])
def test_integrals_inside_integrals_are_refused_at_once(inner: str) -> None:
    start = time.thread_time()
    assert not same_answer(rf"\int_0^1 {inner} \, dx + z", "z + 1/4")
    assert not same_answer(rf"\int_0^1 {inner} \, dx + z", r"z + \frac{\pi^2}{12}")
    assert time.thread_time() - start < 2.0


def test_an_expression_written_for_the_points_of_one_process_is_wrong_in_others() -> None:
    points = [evaluate(Node("name", text="x"), point) for point in range(evaluation.POINTS)]
    text = "x+" + "".join(f"(x-({value}))" for value in points)
    assert same_answer("x", text)
    script = (
        "import sys; from rlmods.grading.grader import same_answer as f; print(f('x', sys.argv[1]))"
    )
    output = subprocess.run([sys.executable, "-c", script, text], capture_output=True, text=True)
    assert output.stdout == "False\n"
