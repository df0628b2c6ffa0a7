"""Answers that repeat the question or leave its work to the reader earn nothing; the work done
does."""

import pytest

from rlmods.grading.grader import Rules, is_refused, verify

ECHOES = [  # question, gold, answers
    (
        "Expand (x+1)(x+2).",
        "x^2+3x+2",
        [
            "(x+2)(x+1)",
            "1(x+1)(x+2)",
            "(x+1)^1(x+2)",
            "y=(x+1)(x+2)",
            "(x+1)(x+2)",
            "(x+1)(x+2)+0",
            "(1+x)(2+x)",
            "(x+1)\\cdot(x+2)",
            "-(-(x+1))(x+2)",
            "\\frac{(x+1)(x+2)}{1}",
            "x(x+2)+(x+2)",
            "(x+1)x+2(x+1)",
            "(2x+2)(x+2)/2",
            "x^2+2x+x+2",
            "(x+1)(x+2)\\cdot\\frac{2}{2}",
            "(x+1)(x+3-1)",
            "((x+1))((x+2))",
            "x(x+3)+2",
        ],
    ),
    (
        "Simplify $\\sqrt{12}$.",
        "2\\sqrt3",
        [
            "\\sqrt{12}+0",
            "1\\cdot\\sqrt{12}",
            "\\sqrt{+12}",
            "x=\\sqrt{12}",
            "\\sqrt{12}",
            "\\sqrt{4\\cdot 3}",
            "12^{1/2}",
            "\\sqrt{12}-1+1",
            "\\frac{2\\sqrt{12}}{2}",
            "\\sqrt[2]{12}",
            "\\frac{\\sqrt{12}}{1}",
            "|\\sqrt{12}|",
            "12^{0.5}",
            "\\sqrt{11+1}",
            "\\sqrt{12}\\,",
        ],
    ),
    (
        "Compute $\\int_0^1 e^x dx$.",
        "e-1",
        [
            "\\int_0^1 e^t dt",
            "\\int_0^1 e^x dx",
            "\\int_0^1 e^u\\,du + 0",
            "\\int_{0}^{1} \\exp(x)\\, dx",
            "-\\int_1^0 e^x dx",
            "I = \\int_0^1 e^s ds",
        ],
    ),
    (
        "Compute $(3+4i)(1-2i)$",
        "11-2i",
        [
            "(1-2i)(3+4i)",
            "(3+4i)(1-2i)",
            "(4i+3)(-2i+1)",
            "-(3+4i)(2i-1)",
            "(3+4i)-2i(3+4i)",
            "3-6i+4i-8i^2",
        ],
    ),
    (
        "Find $\\sin 15^\\circ$.",
        "\\frac{\\sqrt6-\\sqrt2}{4}",
        [
            "\\sin 15^\\circ",
            "\\sin(15^\\circ)",
            "\\sin 15°",
            "\\cos 75^\\circ",
            "\\sin\\frac{\\pi}{12}",
            "\\sin 15^{\\circ}\\cdot 1",
            "\\sin(10°+5°)",
        ],
    ),
    (
        "$A\\cup B$ with $A=[0,1]$, $B=[1,3]$?",
        "[0,3]",
        [
            "[0,1]\\cup[1,3]",
            "[1,3]\\cup[0,1]",
            "[0,1] \\cup (1,3]",
            "A\\cup B=[0,1]\\cup[1,3]",
        ],
    ),
    (
        "Find \\(\\{1,2\\}\\cup\\{2,3\\}\\).",
        "\\{1,2,3\\}",
        [
            "\\{1,2\\}\\cup\\{2,3\\}",
            "\\{2,3\\}\\cup\\{1,2\\}",
            "\\{1\\}\\cup\\{2,3\\}",
        ],
    ),
    (
        "Evaluate \\[\\sum_{n=1}^\\infty \\frac{1}{n^2}\\]",
        "\\frac{\\pi^2}{6}",
        [
            "\\sum_{k=1}^\\infty \\frac{1}{k^2}",
            "\\sum_{k=1}^\\infty k^{-2}",
            "\\sum_{n\\ge 1} 1/n^2",
        ],
    ),
    (
        "Simplify $3x+5x+2$.",
        "8x+2",
        [
            "5x+3x+2",
            "3x+5x+2+0",
            "2+3x+5x",
            "3x+5x+2+1-1",
            "x(3+5)+2",
        ],
    ),
    (
        "Rationalize $\\frac{1}{\\sqrt2-1}$",
        "\\sqrt2+1",
        [
            "\\frac{1}{\\sqrt2-1}",
            "\\frac{2}{2\\sqrt2-2}",
            "\\frac{1}{-1+\\sqrt2}",
            "(\\sqrt2-1)^{-1}",
            "1/(\\sqrt{2}-1)",
        ],
    ),
    (
        "Simplify $\\frac{x^2-1}{x-1}$",
        "x+1",
        [
            "\\frac{x^2-1}{x-1}",
            "\\frac{(x+1)(x-1)}{x-1}",
            "\\frac{1-x^2}{1-x}",
            "(x^2-1)/(x-1)",
        ],
    ),
    (
        "Simplify $\\ln 8 - \\ln 2$",
        "2\\ln 2",
        [
            "\\ln 8-\\ln 2",
            "-\\ln 2+\\ln 8",
            "\\log 8-\\log 2",
        ],
    ),
    (
        "Compute $\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\\begin{pmatrix}1&0\\\\1&1\\end{pmatrix}$",
        "\\begin{pmatrix}3&2\\\\7&4\\end{pmatrix}",
        [
            "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\\begin{pmatrix}1&0\\\\1&1\\end{pmatrix}",
            "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}\\cdot\\begin{bmatrix}1&0\\\\1&1\\end{bmatrix}",
        ],
    ),
    (
        "Simplify $\\sin^2 x+\\cos^2 x + x$",
        "x+1",
        [
            "\\cos^2 x+\\sin^2 x+x",
            "x+\\sin^2 x+\\cos^2 x",
        ],
    ),
    (
        "Expand $(a+b)^2$",
        "a^2+2ab+b^2",
        [
            "(b+a)^2",
            "(a+b)(a+b)",
            "(a+b)(b+a)",
            "(-a-b)^2",
        ],
    ),
]
ANSWERS = [
    (
        "Expand (x+1)(x+2).",
        "x^2+3x+2",
        [
            "x^2+3x+2",
            "2+3x+x^2",
            "y=x^2+3x+2",
            "x^2+3\\cdot x+2",
        ],
    ),
    (
        "Factor $x^2+3x+2$",
        "(x+1)(x+2)",
        [
            "(x+2)(x+1)",
            "(x+1)(x+2)",
            "x^2+3x+2 = (x+1)(x+2)",
        ],
    ),
    (
        "Find the quadratic with roots 1 and 2, leading coefficient 1",
        "x^2-3x+2",
        [
            "(x-1)(x-2)",
            "x^2-3x+2",
        ],
    ),
    (
        "Simplify $\\sqrt{12}$.",
        "2\\sqrt3",
        [
            "2\\sqrt{3}",
            "\\sqrt{12}=2\\sqrt3",
        ],
    ),
    (
        "Compute $\\int_0^1 e^x dx$.",
        "e-1",
        [
            "e-1",
            "-1+e",
            "\\int_0^1 e^x dx=e-1",
        ],
    ),
    (
        "Compute $(3+4i)(1-2i)$",
        "11-2i",
        [
            "11-2i",
            "-2i+11",
        ],
    ),
    (
        "Solve $|x|>1$",
        "(-\\infty,-1)\\cup(1,\\infty)",
        [
            "x<-1 or x>1",
            "(-\\infty,-1)\\cup(1,\\infty)",
            "(1,\\infty)\\cup(-\\infty,-1)",
        ],
    ),
    (
        "Domain of $1/(x-1)$",
        "x\\ne 1",
        [
            "(-\\infty,1)\\cup(1,\\infty)",
            "\\mathbb{R}\\setminus\\{1\\}",
        ],
    ),
    (
        "Find $f(f(x))$ for $f(x)=\\frac{1}{x+1}$",
        "\\frac{x+1}{x+2}",
        [
            "\\frac{x+1}{x+2}",
            "\\frac{1+x}{2+x}",
        ],
    ),
    (
        "Differentiate $x^2 e^x$",
        "x^2e^x+2xe^x",
        [
            "(x^2+2x)e^x",
            "x(x+2)e^x",
            "e^x(x^2+2x)",
        ],
    ),
    (
        "Find the sum of the geometric series $\\sum_{n=0}^\\infty x^n$",
        "\\frac{1}{1-x}",
        [
            "\\frac{1}{1-x}",
            "(1-x)^{-1}",
        ],
    ),
    (
        "A square has side $x+3$; a rectangle ... find the perimeter",
        "4x+12",
        [
            "4(x+3)",
            "4x+12",
        ],
    ),
    (
        "Solve $x^2-2x-1=0$",
        "1\\pm\\sqrt2",
        [
            "1+\\sqrt2, 1-\\sqrt2",
            "x=1\\pm\\sqrt{2}",
        ],
    ),
    (
        "Roots of $x^2+2x+5$",
        "-1\\pm 2i",
        [
            "-1+2i,-1-2i",
        ],
    ),
    (
        "Simplify $\\frac{1+i}{1-i}+x$",
        "x+i",
        [
            "x+i",
        ],
    ),
    (
        "Find the distance between (1,2) and (4,4)",
        "\\sqrt{13}",
        [
            "\\sqrt{13}",
        ],
    ),
    (
        "The area of circle radius 3",
        "9\\pi",
        [
            "9\\pi",
            "\\pi\\cdot 9",
            "\\pi 3^2",
        ],
    ),
]


def paid(question: str, gold: str, answers: list[str]) -> list[str]:
    boxes = {answer: f"\\boxed{{{answer}}}" for answer in answers}
    return [answer for answer in answers if verify(boxes[answer], gold, Rules(), question)]


@pytest.mark.parametrize(("question", "gold", "answers"), ECHOES)
def test_an_echo_with_an_edit_is_refused(question: str, gold: str, answers: list[str]) -> None:
    assert paid(question, gold, answers) == []


def test_an_echo_that_is_too_deep_to_read_is_refused() -> None:
    """A worker with more room on its stack may have read it, and found it right."""
    assert is_refused("(" * 100 + "3+4" + ")" * 100, "7", Rules(), "What is 3+4?")


@pytest.mark.parametrize(("question", "gold", "answers"), ANSWERS)
def test_an_answer_is_paid(question: str, gold: str, answers: list[str]) -> None:
    assert paid(question, gold, answers) == answers


@pytest.mark.parametrize(
    ("question", "gold", "answer"),
    [
        ("What is $1/0$?", "x+2", "x+2"),
        (r"$\frac{0}{0}$ and $0^{-1}$", "x+2", "x+2"),
        (r"$\sqrt[0]{2}$", "x+2", "x+2"),
        ("A product costs 5 dollars.", "x^2-1", "(x-1)(x+1)"),
        (r"Simplify $\frac{1}{x-1}-\frac{1}{x+1}$.", r"\frac{2}{x^2-1}", r"\frac{2}{(x-1)(x+1)}"),
        (r"A recipe needs $1\frac{1}{2}$ cups.", "1.5", r"1\frac{1}{2}"),
    ],
)
def test_what_a_question_mentions_does_not_refuse_a_right_answer(
    question: str, gold: str, answer: str
) -> None:
    assert verify(f"\\boxed{{{answer}}}", gold, question=question)


@pytest.mark.parametrize(
    "question", ["List the roots in ascending order.", "Write them from the least to the greatest."]
)
def test_an_order_that_is_asked_counts(question: str) -> None:
    assert verify(r"\boxed{1, 2, 3}", "1, 2, 3", question=question)
    assert not verify(r"\boxed{3, 1, 2}", "1, 2, 3", question=question)
    assert verify(r"\boxed{3, 1, 2}", "1, 2, 3", question="List the roots.")
