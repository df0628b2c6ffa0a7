"""Prompts whose answer is a number that they do not name."""

from collections import Counter

import pytest

from rlmods.data import HiddenNumber


def test_every_number_occurs_equally_often() -> None:
    splits = HiddenNumber(low=2, high=5, num_train=40, num_val=8)()
    assert Counter(prompt.answer for prompt in splits.train) == {"2": 10, "3": 10, "4": 10, "5": 10}
    assert {prompt.text for prompt in (*splits.train, *splits.val)} == {"Guess 2 to 5:"}
    assert len({prompt.id for prompt in (*splits.train, *splits.val)}) == 48


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_demonstrations_are_guesses_after_true_replies(fraction: float) -> None:
    splits = HiddenNumber(
        num_train=300, num_val=5, demonstrations=True, bisection_fraction=fraction
    )()
    num_turns: Counter[int] = Counter()
    for prompt in splits.train:
        head, *lines = (prompt.text or "").split("\n")
        number = int(prompt.answer or "")
        first, *rest = head.removeprefix("Guess 0 to 9:").split(":")
        words = [first, *rest, *lines]
        low, high = 0, 9
        for guess, reply in zip(words[:-1:2], words[1::2], strict=True):
            assert reply == ("higher" if int(guess) < number else "lower")
            if fraction == 1:
                assert int(guess) == (low + high) // 2
            low = max(low, int(guess) + 1) if reply == "higher" else low
            high = min(high, int(guess) - 1) if reply == "lower" else high
        num_turns[len(words) // 2] += 1
        response = int(prompt.meta["response"])
        assert 0 <= response <= 9
        if fraction == 1:
            assert response == (low + high) // 2
    assert set(num_turns) >= {0, 1, 2}
    assert [prompt.text for prompt in splits.val] == ["Guess 0 to 9:"] * 5
