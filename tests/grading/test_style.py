"""Unusual notations of right answers, beside wrong answers that resemble them, under the default
rules."""

import string

import pytest
from hypothesis import given, strategies as st

from rlmods.grading.grader import CLOSED_FORMS, Rules, same_answer, verify
from rlmods.grading.grader.style import plain_characters

REALS = r"(-\infty, \infty)"
RIGHT = [  # gold, response
    ("-34", r"\boxed{－３４}"),
    ("7/5", r"\boxed{7⁄5}"),
    (r"\frac{3}{2}", r"\boxed{1½}"),
    (r"\frac{3}{2}", r"\boxed{1¹⁄₂}"),
    (r"\frac{7}{8}", r"\boxed{⅞}"),
    ("x^{12}", r"\boxed{x¹²}"),
    ("x^{-1}", r"\boxed{x⁻¹}"),
    ("101_2", r"\boxed{101₂}"),
    ("73", "The answer is 73。"),
    ("50", r"\boxed{𝟓𝟎}"),
    (r"\alpha + 1", r"\boxed{α + 1}"),
    ("-5", r"\boxed{{-}5}"),
    ("5\\%", r"\boxed{5\text{%}}"),
    ("101_2", "The answer is $(101)_2$."),
    *(
        (REALS, rf"\boxed{{{x}}}")
        for x in (
            r"\text{all real numbers}",
            r"\text{all reals}",
            "all real numbers",
            r"x \in \mathbb{R}",
        )
    ),
    (r"\text{all real numbers}", r"\boxed{\mathbb{R}}"),
    *(
        ("C", rf"\boxed{{{x}}}")
        for x in (
            r"\mathbf{C}",
            r"\mathbf{(C)}",
            r"\text{Option C}",
            "choice (C)",
            r"\text{Option }\mathbf{C}",
        )
    ),
    (r"\text{Option B}", r"\boxed{B}"),
    *(
        ("3:25 \\text{ p.m.}", rf"\boxed{{3:25{x}}}")
        for x in (" PM", "pm", r"\,\text{p. m.}", r"~\mathrm{PM}", " p.m.")
    ),
    ("3:25", r"\boxed{3:25 \text{ PM}}"),
    ("8 PM", r"\boxed{8}"),
    *(
        ("113", f"{x} 113")
        for x in (
            "_Answer:_",
            "_Answer_:",
            "***Answer:***",
            "__Final Answer:__",
            "<b>Answer:</b>",
            r"\textbf{Answer:}",
        )
    ),
    *(
        ("0, 37", rf"\boxed{{0}}{x}\boxed{{37}}")
        for x in (r",\ ", r"\;", "~", r"\quad", r", \hspace{1em}", r"\text{, }", r"\,\text{and}\,")
    ),
    ("yes", r"\boxed{\text{Yes}}"),
    ("x^2", r"\boxed{x**2}"),
    ("0.0015", r"\boxed{1.5 x 10^{-3}}"),
    ("60", r"\boxed{60 \frac{\text{km}}{\text{h}}}"),
    ("1/3", r"\boxed{0.333\ldots}"),
    ("1, 2", r"\boxed{1\text{, and }2}"),
    (r"\text{DNE}", r"\boxed{\text{does not exist}}"),
    ("DNE", "The limit does not exist."),
]
WRONG = [
    ("52", r"\boxed{5²}"),
    ("512", r"\boxed{5¹²}"),
    ("11/2", r"\boxed{1½}"),
    ("51", r"\boxed{5①}"),
    ("3.5", r"\boxed{3。5}"),
    ("93", r"\boxed{93…}"),
    ("10100", r"\boxed{101₀₀}"),
    ("x^{-5}", r"\boxed{x^{-}5}"),
    ("101", r"\boxed{(101)_2}"),
    ("101_2", r"\boxed{(101)_3}"),
    (REALS, r"\boxed{\text{all real numbers except } 0}"),
    (r"(0, \infty)", r"\boxed{\text{all real numbers}}"),
    *(
        ("B", rf"\boxed{{{x}}}")
        for x in (
            r"\text{Option B or C}",
            r"\text{not Option B}",
            "Option B, Option C",
            r"\mathbf{BC}",
            "option b",
        )
    ),
    *(("3:25 PM", rf"\boxed{{{x}}}") for x in ("3:25 AM", "6:50 PM", "3:26 PM", "3:25 AM or PM")),
    *(("8 PM", rf"\boxed{{{x}}}") for x in ("8 AM", "9", "9 PM")),
    *(("1:45", rf"\boxed{{{x}}}") for x in ("2:90", "1/45", "0:105")),
    ("113", "_Answer:_ 94 or 113"),
    *(
        ("59", rf"\boxed{{94}}{x}\boxed{{59}}")
        for x in (r",\ ", r"\;", "~", r"\quad", r"\hspace{1cm}", r" \lor ", " | ", r" \text{ or } ")
    ),
    *(("yes", rf"\boxed{{{x}}}") for x in ("y e s", r"y\,e\,s", "yse")),
    ("(1, 2, 3)", r"\boxed{[1, 2, 3)}"),
    ("(1, 2, 3)", r"\boxed{(1, 2, 3]}"),
    ("2/3", r"\boxed{0.7}"),
    (r"\frac{200}{3}", r"\boxed{66.7}"),
    (r"\frac{\pi}{100}", r"\boxed{\frac{\pi + 10^{-9}}{100}}"),
    (r"\sqrt{2}", r"\boxed{\sqrt{2 + 10^{-9}}}"),
    ("0.0015", r"\boxed{1.5 x}"),
    ("0.003", r"\boxed{0.333\ldots}"),
    ("60 km/h", r"\boxed{60 \frac{\text{m}}{\text{h}}}"),
    ("DNE", "The limit exists."),
    ("0", "The limit does not exist."),
]


@pytest.mark.parametrize(("gold", "text"), RIGHT)
def test_right(gold: str, text: str) -> None:
    assert verify(text, gold, Rules())


@pytest.mark.parametrize(("gold", "text"), WRONG)
def test_wrong(gold: str, text: str) -> None:
    assert not verify(text, gold)
    assert not verify(text, gold, Rules())


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1288", "(23)(56)"),
        ("336", r"\sum_{k=1}^{8} 42"),
        ("81", r"\prod_{k=1}^{4} 3"),
        ("-12", "(3)(-4)"),
        ("24", "(2)(3)(4)"),
    ],
)
def test_arithmetic_in_other_signs_is_no_closed_form(gold: str, answer: str) -> None:
    assert not same_answer(answer, gold, CLOSED_FORMS)
    assert same_answer(answer, gold, Rules(form="any"))


@given(st.text(string.printable))
def test_ascii_is_unchanged(text: str) -> None:
    assert plain_characters(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_only_digits_become_digits(text: str) -> None:
    """A character whose value is not that of a decimal digit never reads as one outside an
    exponent, index or fraction."""
    for character in text:
        plain = plain_characters(character)
        assert not plain.isdecimal() or character.isdecimal()
