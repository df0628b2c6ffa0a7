from collections.abc import Sequence
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.reward import Language
from tests.reward.samples import response


def score(text: str, script: str | Sequence[str] = "Latin") -> float | None:
    return Language(script)([response(text)])[0]


@pytest.mark.parametrize(
    ("text", "script", "value"),
    [
        ("Hello, world 12!", "Latin", 1.0),
        ("Привет", "Latin", 0.0),
        ("ab вг", "Latin", 0.5),
        ("a бвг", "Cyrillic", 0.75),
        ("straße, cafe\u0301, ﬁ", "Latin", 1.0),
        ("答案 is 5", "Latin", 0.5),
        ("答案は五です", "Han", 0.5),
        ("答案は五です", ["Han", "Hiragana"], 1.0),
        ("答案は五です ok", ["Han", "Hiragana"], 0.75),
        ("ラーメン", "Katakana", 1.0),
        ("𝑥 + µ is x", "Latin", 1.0),
        ("𝑥𝑦", "Latin", 1.0),
        ("a ५ ٣", "Latin", 1.0),
        ("πr", "Latin", 0.5),
        ("πr", ("Latin", "Greek"), 1.0),
        ("한국어", "hangul", 1.0),
        ("e\u0301", "Greek", 0.0),
        ("\ud800a", "Latin", 1.0),
        ("", "Latin", 1.0),
        ("12 + 3 = 15 😀 \u0301", "Latin", 1.0),
    ],
)
def test_is_the_fraction_of_letters_in_the_script(
    text: str, script: str | Sequence[str], value: float
) -> None:
    assert score(text, script) == value


@pytest.mark.parametrize("script", ["Klingon", ["Latin", "Elvish"], [], [5], "Latin-1"])
def test_rejects_unknown_scripts(script: Any) -> None:
    with pytest.raises(UserError, match=r"Language: script.*type reward\.script=Latin"):
        Language(script)
