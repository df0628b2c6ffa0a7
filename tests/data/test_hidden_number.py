"""Prompts whose answer is a number that they do not name."""

from __future__ import annotations

from collections import Counter

import pytest

from rlmods.data import HiddenNumber
from rlmods.errors import UserError


def test_every_number_occurs_equally_often() -> None:
    splits = HiddenNumber(low=2, high=5, num_train=40, num_val=8)()
    assert Counter(prompt.answer for prompt in splits.train) == {"2": 10, "3": 10, "4": 10, "5": 10}
    assert {prompt.text for prompt in (*splits.train, *splits.val)} == {"Guess 2 to 5:"}
    assert len({prompt.id for prompt in (*splits.train, *splits.val)}) == 48


def test_the_seed_changes_the_order() -> None:
    first, again, other = (HiddenNumber(num_train=50, seed=seed)().train for seed in (0, 0, 1))
    assert [p.answer for p in first] == [p.answer for p in again] != [p.answer for p in other]


def test_chat_puts_the_text_in_a_message() -> None:
    [prompt] = HiddenNumber(num_train=1, num_val=0, chat=True)().train
    assert prompt.messages == [{"role": "user", "content": "Guess 0 to 9:"}]


def test_bounds_are_checked() -> None:
    with pytest.raises(UserError, match=r"data\.high=3: must be above data\.low=3"):
        HiddenNumber(low=3, high=3)()
