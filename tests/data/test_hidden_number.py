"""Prompts whose answer is a number that they do not name."""

from collections import Counter

import pytest

from rlmods.data import HiddenNumber
from rlmods.errors import UserError


def test_every_number_occurs_equally_often() -> None:
    splits = HiddenNumber(low=2, high=5, num_train=40, num_val=8)()
    assert Counter(prompt.answer for prompt in splits.train) == {"2": 10, "3": 10, "4": 10, "5": 10}
    assert {prompt.text for prompt in (*splits.train, *splits.val)} == {"Guess 2 to 5:"}
    assert len({prompt.id for prompt in (*splits.train, *splits.val)}) == 48


def test_bounds_are_checked() -> None:
    with pytest.raises(UserError, match=r"data\.high=3: must be above data\.low=3"):
        HiddenNumber(low=3, high=3)()
