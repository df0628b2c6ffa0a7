"""Credit of a response as text."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlmods.lab.credit import TokenTexts, advantage_text, credit, trained_text

ROW: dict[str, Any] = {
    "tokens": [1, 2, 1, 2, 1, 2],
    "response": "x",
    "credit": [[0, 2, 0.25, 0.5, -0.5], [2, 3, -0.25, 0.5, -1.5], [4, 6, 0.125, 0.125, None]],
    "credit_terms": {"outcome": 1.0, "state": 0.5},
    "trained": [[1, 3], [5, 6]],
}


@pytest.fixture
def decode(tmp_path: Path) -> TokenTexts:
    (tmp_path / "export").mkdir()
    model = {"type": "WordLevel", "vocab": {"?": 0, "one": 1, "\x1b": 2}, "unk_token": "?"}
    saved = {"version": "1.0", "added_tokens": [], "model": model}
    (tmp_path / "export/tokenizer.json").write_text(json.dumps(saved))
    return TokenTexts(tmp_path)


class TestAdvantage:
    @pytest.mark.parametrize(
        ("begin", "end", "expected"),
        [
            (0, 2, "advantage +0.250 = 1 x +0.500 outcome + 0.5 x -0.500 state"),
            (1, 3, "advantage -0.250..+0.250 = 1 x +0.500 outcome + 0.5 x -1.500..-0.500 state"),
            (4, 6, "advantage +0.125 = 1 x +0.125 outcome + 0.5 x none state"),
            (3, 4, "not trained"),
        ],
    )
    def test_of_a_sum(self, begin: int, end: int, expected: str) -> None:
        assert advantage_text(ROW, begin, end) == expected

    def test_of_a_response_with_one_advantage(self) -> None:
        row = {"tokens": [1, 2], "advantage": -0.5}
        assert credit(row) == [[0, 2, -0.5]]
        assert advantage_text(row, 1, 2) == "advantage -0.500"
        assert advantage_text(row | {"advantage": None}, 0, 2) == "not trained"


class TestTrained:
    def test_the_fewer_are_named(self, decode: TokenTexts) -> None:
        found = [trained_text(ROW, *span, decode) for span in ((0, 6), (0, 1), (1, 3), (4, 6))]
        assert found == [
            "trained 3 of 5 tokens, not 0 'one', 4 'one'",
            "trained 0 of 1 token",
            "trained 2 of 2 tokens",
            "trained 1 of 2 tokens: 5 '\\x1b'",
        ]

    def test_without_a_tokenizer_they_have_numbers(self, tmp_path: Path) -> None:
        assert trained_text(ROW, 4, 6, TokenTexts(tmp_path)) == "trained 1 of 2 tokens: 5"

    def test_without_a_selection_there_is_no_text(self, decode: TokenTexts) -> None:
        row = {name: x for name, x in ROW.items() if name != "trained"}
        assert trained_text(row, 0, 6, decode) == ""
