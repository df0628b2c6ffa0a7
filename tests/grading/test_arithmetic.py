from __future__ import annotations

from fractions import Fraction

import pytest

from rlmods.grading.arithmetic import RefusedError, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2*3", 7),
        ("-(7 - 10) / +4", Fraction(3, 4)),
        ("100/3/7 - 1", Fraction(79, 21)),
        ("2**10 + (7 // 2) * 3 % 5", 1028),
        ("12345678901234567890 * 9876543210", 12345678901234567890 * 9876543210),
        ("0.5 + 1", 1.5),
        ("4**0.5", 2.0),
        ("2**-1", Fraction(1, 2)),
    ],
)
def test_arithmetic(text: str, value: Fraction | float) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "x",
        "f(1)",
        "(1).real",
        "[1]",
        "'a'",
        "True + 1",
        "1j",
        "(-8)**0.5",
        "1 if 2 else 3",
        "1 < 2",
        "9**9**9**9",
        "(" * 5000,
        "-" * 5000 + "1",
        "1 + " * 10_000 + "1",
        "",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        evaluate(text)
