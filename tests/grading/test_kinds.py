"""Properties of 40 kinds of gold answers: equal answers are accepted in any format and notation,
answers with another value are rejected, also beside the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward.accuracy import verify
from tests.grading.gold_cases import (
    KINDS,
    PROSE,
    any_text,
    boxed,
    each,
    each_kind,
    frac,
    number_lists,
)

pytestmark = pytest.mark.slow


def with_gaps(gold: str, gaps: Sequence[str]) -> str:
    """Return `gold` with gaps between its tokens, but no empty lines, which separate answers."""
    tokens = re.findall(r"\\text\{[^}]*\}|\\[A-Za-z]+ ?|\\.|\d+(?:\.\d+)?|[A-Za-z]+|.", gold)
    return "".join(
        token if token == " " else token + gaps[index % len(gaps)]
        for index, token in enumerate(tokens)
    )


FORMS = (
    r"\boxed{%s}",
    r"Thus $x$ is 3, so $\boxed{%s}$.",
    r"Is it \boxed{0}? No. \[\boxed{ %s }\]",
    "It follows.\n<answer>%s</answer>",
    r"<think>\boxed{1}</think> <answer> %s </answer>",
    "The answer is $%s$.",
    r"**Answer:** \(%s\)",
    "2 + 2 = 4\n#### %s",
)


@each
@each_kind
@given(st.data())
def test_gold_in_each_answer_format_and_each_kind_of_brackets(kind, data):
    gold = data.draw(KINDS[kind]).gold
    answers = [f"${gold}$", rf"\({gold}\)", rf"\[ {gold} \]", f"{gold}.", f"  {gold} ."]
    if kind not in PROSE:
        larger = re.sub(r"[)\]]|\\\}", r"\\right\g<0>", re.sub(r"[(\[]|\\\{", r"\\left\g<0>", gold))
        answers += [
            rf"\displaystyle {gold}",
            f"{{{gold}}}",
            larger,
            gold.replace("frac", "dfrac"),
        ]
    responses = [*map(boxed, answers), *(form % gold for form in FORMS)]
    assert [response for response in responses if not verify(response, gold)] == []
    assert verify(boxed(gold), rf"So it is \boxed{{{gold}}}.")


@each
@each_kind
@given(st.data())
def test_other_notations(kind, data):
    """Another order, other commands, equal expressions, +0 and plus signs, thousands
    separators, a leading `x =`."""
    case = data.draw(KINDS[kind])
    assert [answer for answer in case.same if not verify(boxed(answer), case.gold)] == []


@each
@each_kind
@given(st.data())
def test_gold_with_spaces_between_its_tokens(kind, data):
    gaps = ["", " ", "  ", "\n"] + ([] if kind in PROSE else [r"\,", r"\; ", "~"])
    gold = data.draw(KINDS[kind]).gold
    assert verify(
        boxed(with_gaps(gold, data.draw(st.lists(st.sampled_from(gaps), min_size=1, max_size=20)))),
        gold,
    )


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
