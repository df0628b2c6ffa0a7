"""Property: a response with both the correct and a wrong answer is rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward.accuracy import verify
from tests.grading.gold_cases import KINDS, each_kind

TWO_ANSWERS = (
    r"\boxed{%s \text{ or } %s}",
    r"It is \boxed{%s} or \boxed{%s}.",
    "The answer is $%s$ or $%s$.",
    "The answer is $%s$, $%s$",
    "<answer>%s or %s</answer>",
    "#### %s or %s",
)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "union"])
@each_kind
@given(st.data())
def test_a_correct_answer_next_to_a_wrong_one_is_rejected(kind, data):
    """Except for unions: a list of sets may mean their union, which can equal the gold."""
    case = data.draw(KINDS[kind])
    responses = [form % (case.gold, case.wrong[0]) for form in TWO_ANSWERS] + [
        form % (case.wrong[0], case.gold) for form in TWO_ANSWERS
    ]
    assert [response for response in responses if verify(response, case.gold)] == []
