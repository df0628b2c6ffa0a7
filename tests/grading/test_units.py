"""Quantities in plain letters, phrases that are no products, and what a gold carries that an answer
may leave out."""

import pytest
from hypothesis import given, strategies as st

from rlmods.grading.grader import CLOSED_FORMS, Rules, is_gold, same_answer
from rlmods.grading.grader.units import read_quantity, read_unit

RIGHT = [  # gold, answers
    (r"50\%", ["50%", "0.5", "50"]),
    ("101_2", ["101_2", "101"]),
    (r"2 \pmod 3", [r"2 \pmod 3", "2"]),
    ("5 m/s", ["5 m/s", "18 km/h", "5", r"5\text{ m/s}", "5m/s"]),
    ("5 m", ["5 m", "5m", "500 cm", r"500\text{ cm}", "x = 5 m"]),
    ("5m", ["5m", "5 m", "500 cm"]),
    (
        "5",
        [
            "5 cm",
            "5 m",
            "5 m/s^2",
            r"5\,\Omega",
            r"5\ km/h",
            r"5^\circ\text{C}",
            "5 per day",
            "5 in total",
            "5 apples in total",
            "= 5",
        ],
    ),
    ("60 mph", ["60 miles per hour", "60"]),
    ("25 degrees Celsius", [r"25^\circ C", r"25^\circ\text{C}", "25°C"]),
    (
        "90 minutes",
        ["1 hour 30 minutes", "1h 30min", "1.5 hours", r"1\text{ hour }30\text{ minutes}"],
    ),
    ("12.50", ["12 dollars and 50 cents"]),
    ("2500000", ["2.5 million", r"2.5\text{ million}", "2.5 million dollars"]),
    ("(-1, 3)", ["(-1, 3)", "-1 < x < 3", r"\{x: -1<x<3\}"]),
    ("undefined", ["undefined", r"\text{undefined}"]),
    (r"\emptyset", [r"\text{no solution}", r"\varnothing"]),
    ("18", [r"\begin{array}{c}18\end{array}", r"\approx 18", r"18\quad\text{cm}", r"\quad 18"]),
    (r"x=2k\pi \text{ for } k \in \mathbb{Z}", [r"x = 2\pi k\text{ for }k\in\mathbb{Z}"]),
    (r"4\pi", [r"4$\pi$", r"$4\pi$", r"4 \cdot \pi"]),
    ("6", [r"6\text{ different ways}", r"6\text{ possible values}"]),
]
WRONG = [
    (r"50\%", ["5000%"]),
    ("101_2", ["101_3"]),
    (
        "5",
        ["101_2", "5m", "5 thousand", r"5\text{ plus }", "5 K", r"5 \pmod 3", "2 s + 3", "5 N m"],
    ),
    ("2 s + 3", ["5"]),
    (r"2 \pmod 3", [r"2 \pmod 5"]),
    ("5 m/s", ["5 km/h", "5 m"]),
    ("5 m", ["5", "5 s", "501 cm"]),
    ("5m", ["5", "5s", "500 g"]),
    ("25 degrees Celsius", [r"25^\circ F", r"25^\circ"]),
    ("3", ["1 hour and 2 hours"]),
    ("9", ["3 ft 6 in", "3 hours 6 hours"]),
    ("2.5", ["2.5 million"]),
    ("(-1, 3)", ["[-1, 3]", r"-1 < x \le 3", "-1 < x < 4"]),
    (
        r"2\sqrt2",
        [
            rf"2{gap}\sqrt2"
            for gap in (
                r"\text{ plus }",
                r"\mbox{over}",
                r"\text{ cm }",
                r"\quad",
                r"\hspace{1cm}",
                r"\text{, }",
            )
        ],
    ),
    (
        r"2\sqrt2",
        [r"2\text{ plus } \cdot \sqrt2", r"$2$ $\sqrt2$", "2\n\n\\sqrt2", r"2 \therefore \sqrt2"],
    ),
    (r"2\frac13", [r"2\quad\frac13"]),
    ("1234", [r"1\quad 234", "$1$ $234$"]),
    ("10", [r"5\text{ minus }2"]),
    ("x + 3", [r"x\text{ minus } + 3"]),
    ("x > 5", [r"x > 5\text{ never}"]),
]


@pytest.mark.parametrize("rules", [Rules(), CLOSED_FORMS])
@pytest.mark.parametrize(
    ("gold", "answer"), [(gold, answer) for gold, answers in RIGHT for answer in answers]
)
def test_right(gold: str, answer: str, rules: Rules) -> None:
    assert same_answer(answer, gold, rules)


@pytest.mark.parametrize("rules", [Rules(), CLOSED_FORMS])
@pytest.mark.parametrize(
    ("gold", "answer"), [(gold, answer) for gold, answers in WRONG for answer in answers]
)
def test_wrong(gold: str, answer: str, rules: Rules) -> None:
    assert not same_answer(answer, gold, rules)


@pytest.mark.parametrize(
    ("gold", "graded"), [("undefined", True), ("NaN", False), ("null", False), (" ", False)]
)
def test_undefined_is_a_gold(gold: str, graded: bool) -> None:
    assert is_gold(gold) is graded


@given(
    st.integers(1, 10**6),
    st.sampled_from(["cm", "kg", "km/h", "m/s^2", "miles per hour", "apples", "ohm", "per day"]),
)
def test_a_plain_unit_is_read_as_an_upright_one(n: int, unit: str) -> None:
    quantity = read_quantity(f"{n} {unit}")
    assert quantity is not None
    assert quantity == read_quantity(rf"{n}\text{{ {unit}}}")
    assert quantity.text == rf"{n}\text{{ {unit}}}"
    assert read_unit(unit) is not None
