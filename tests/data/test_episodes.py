"""Numbered episodes."""

from __future__ import annotations

import pytest

from rlmods.data import Episodes
from rlmods.errors import UserError


def test_seeds_are_whole_and_disjoint() -> None:
    splits = Episodes(num_train=4, num_val=2, seed=3)()
    assert [prompt.meta["seed"] for prompt in (*splits.val, *splits.train)] == [3, 4, 5, 6, 7, 8]
    assert len({prompt.id for prompt in (*splits.val, *splits.train)}) == 6


@pytest.mark.parametrize(("field", "bad"), [("num_train", 0), ("num_val", -1), ("seed", -1)])
def test_fields_are_checked(field: str, bad: int) -> None:
    with pytest.raises(UserError, match=rf"data\.{field}={bad}"):
        Episodes(**{field: bad})()
