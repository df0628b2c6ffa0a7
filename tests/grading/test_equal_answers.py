"""Property: the gold answer is accepted in any answer format and any notation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward.accuracy import verify
from tests.grading.gold_cases import KINDS, PROSE, boxed, each, each_kind


def with_gaps(gold: str, gaps: Sequence[str]) -> str:
    """Return `gold` with gaps between its tokens, but no empty lines, which separate answers."""
    tokens = re.findall(r"\\text\{[^}]*\}|\\[A-Za-z]+ ?|\\.|\d+(?:\.\d+)?|[A-Za-z]+|.", gold)
    return "".join(
        token if token == " " else token + gaps[index % len(gaps)]
        for index, token in enumerate(tokens)
    )


class TestEqualAnswersAreAccepted:
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
    def test_gold_in_each_answer_format_and_each_kind_of_brackets(self, kind, data):
        gold = data.draw(KINDS[kind]).gold
        answers = [f"${gold}$", rf"\({gold}\)", rf"\[ {gold} \]", f"{gold}.", f"  {gold} ."]
        if kind not in PROSE:
            larger = re.sub(
                r"[)\]]|\\\}", r"\\right\g<0>", re.sub(r"[(\[]|\\\{", r"\\left\g<0>", gold)
            )
            answers += [
                rf"\displaystyle {gold}",
                f"{{{gold}}}",
                larger,
                gold.replace("frac", "dfrac"),
            ]
        responses = [*map(boxed, answers), *(form % gold for form in self.FORMS)]
        assert [response for response in responses if not verify(response, gold)] == []
        assert verify(boxed(gold), rf"So it is \boxed{{{gold}}}.")

    @each
    @each_kind
    @given(st.data())
    def test_other_notations(self, kind, data):
        """Another order, other commands, equal expressions, +0 and plus signs, thousands
        separators, a leading `x =`."""
        case = data.draw(KINDS[kind])
        assert [answer for answer in case.same if not verify(boxed(answer), case.gold)] == []

    @each
    @each_kind
    @given(st.data())
    def test_gold_with_spaces_between_its_tokens(self, kind, data):
        gaps = ["", " ", "  ", "\n"] + ([] if kind in PROSE else [r"\,", r"\; ", "~"])
        gold = data.draw(KINDS[kind]).gold
        assert verify(
            boxed(
                with_gaps(gold, data.draw(st.lists(st.sampled_from(gaps), min_size=1, max_size=20)))
            ),
            gold,
        )
