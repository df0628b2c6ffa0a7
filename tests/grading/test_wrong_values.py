"""Property: an answer with another value than the gold is rejected."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward.accuracy import verify
from tests.grading.gold_cases import KINDS, any_text, boxed, each, each_kind, frac, number_lists


@each
@each_kind
@given(st.data())
def test_other_values_are_rejected(kind, data):
    """Also with the two exchanged."""
    case = data.draw(KINDS[kind])
    assert [
        answer
        for answer in case.wrong
        if verify(boxed(answer), case.gold) or verify(boxed(case.gold), answer)
    ] == []


@any_text
@given(number_lists["xs"], st.data())
def test_tuples_are_ordered_and_sets_are_not(xs, data):
    order = data.draw(st.permutations(xs))
    gold, answer = (", ".join(map(frac, items)) for items in (xs, order))
    assert verify(boxed(f"({answer})"), f"({gold})") is (order == xs)
    assert verify(boxed(rf"\{{{answer}\}}"), rf"\{{{gold}\}}")
    assert verify(boxed(answer), gold)
