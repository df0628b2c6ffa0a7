"""No answer is paid for two golds of different value, and no trivial one for any."""

import itertools

import pytest

from rlmods.grading.grader import CLOSED_FORMS, Rules, same_answer

GOLDS = [  # no two of them are equal
    *("2", "7", "-3", "0", r"\frac{3}{8}", "0.25", r"12\%", r"5\text{ cm}", r"\sqrt{2}", r"\pi"),
    *("e-1", "3+4i", "x+1", "x^2-1", r"\frac{1}{x}", "2^x", r"\sin x", r"\ln x", "f(x)", "x_1"),
    *("2:3", "1:2:3", "9:1", "x:y", "12:45", "S_1:S = 7:32", "(1,2)", "(0,0)", "(1,2,3)"),
    *("[0,1]", "(2,3)", r"(-\infty,1)", r"[0,\infty)", r"(0,1)\cup(2,3)", r"\mathbb{R}"),
    *(r"\emptyset", r"\{1,2\}", "1,2,3", r"\pm 4", "x<5", "x>5", "x=8", "y=2x+1"),
    *("x+y=1", r"x \ne 3", r"\infty", "B", "Monday", "101_2", r"3\pmod 4"),
    *(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}0&0\\0&0\end{pmatrix}"),
    *("2020-02-01", "3-1"),
]
ATOMS = [
    *("0", "1", "-1", "x", "e", "i", r"\infty", r"-\infty", r"\emptyset", r"\mathbb{R}", r"\{\}"),
    *("0/0", "1/0", "0^0", r"\infty/\infty", r"0\cdot\infty", r"\infty-\infty", r"\ln 0", "0!"),
    *("()", "[]", "||", "=", "0=0", "x=x", "1=1", r"x\in\mathbb{R}", "x<x", "nan", "inf", "f(x)"),
    *(r"\sqrt{x}", r"\pm 0", r"\pm\infty", "0%", "x^0", r"x^\infty", "0x", "0x=0", "0=0x", "?"),
    *(r"\text{any}", r"\ldots", "'", "_", r"\sum_{k=1}^{0} k", r"\int_0^0 x dx", "0.0", "1e-400"),
]
JOINED = [
    pattern.format(atom, other)
    for pattern in ("{0}:{1}", "{0}:{1}:{0}", "({0},{1})", "[{0},{1}]", "{0}={1}", "{0},{1}",
                    r"\{{{0},{1}\}}", r"{0}\cup {1}", r"{0}\pm {1}", "{0}<{1}", "{0}/{1}", "{0}^{1}",
                    r"\begin{{pmatrix}}{0}&{1}\\{0}&{1}\end{{pmatrix}}", r"{0} \ne {1}")
    for atom, other in itertools.product(("0", "x", "-1", r"\infty", "1/0", "0x", "e"), repeat=2)
]  # fmt: skip
UNIVERSAL = [*ATOMS, *JOINED]


@pytest.mark.slow
@pytest.mark.parametrize("rules", [Rules(), CLOSED_FORMS], ids=["strict", "closed forms"])
def test_no_answer_is_paid_for_two_golds(rules: Rules) -> None:
    paid = {
        answer: [gold for gold in GOLDS if same_answer(answer, gold, rules)]
        for answer in dict.fromkeys(UNIVERSAL)
    }
    assert {answer: golds for answer, golds in paid.items() if len(golds) > 1} == {}


def test_no_gold_is_paid_for_another() -> None:
    pairs = itertools.permutations(GOLDS, 2)
    assert [pair for pair in pairs if same_answer(*pair)] == []


@pytest.mark.parametrize("gold", ["2:3", "1:2", "7:1", "1:2:3", "x:y", "S_1:S = 7:32"])
@pytest.mark.parametrize("term", ["0", r"\infty", "-0", "0x", "1/0", r"\infty - \infty"])
def test_proportions_have_finite_terms_other_than_0(gold: str, term: str) -> None:
    num_terms = gold.rpartition("=")[2].count(":") + 1
    assert not same_answer(":".join([term] * num_terms), gold, CLOSED_FORMS)
