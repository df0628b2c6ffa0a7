"""Win rates within a group."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from rlmods.judge import Rule
from rlmods.reward import Preference, WeightedSum
from rlmods.types import Prompt, Response, UserError


def said(text: str, prompt: str = "a", answer: str | None = None) -> Response:
    return Response(Prompt(id=prompt, text=prompt, answer=answer), text=text)


def longer(prompt: Prompt, first: str, second: str) -> float:
    return 0.5 if len(first) == len(second) else float(len(first) > len(second))


class TestPreference:
    def test_is_the_share_of_wins(self) -> None:
        assert Preference(longer)([said("x"), said("xxx"), said("xx"), said("yy")]).values == pytest.approx([0, 1, 0.5, 0.5])

    def test_its_mean_in_a_group_is_a_half(self) -> None:
        values = Preference(longer)([said("x" * n) for n in (1, 1, 2, 5, 5, 7, 9)]).values
        assert sum(v for v in values if v is not None) == pytest.approx(3.5)

    def test_groups_do_not_meet_and_rows_stay_in_place(self) -> None:
        rows = [said("x", "a"), said("y" * 9, "b"), said("xx", "a"), said("y", "b")]
        assert Preference(longer)(rows).values == [0.0, 1.0, 1.0, 0.0]
        assert Preference(longer)(rows[::-1]).values == [0.0, 1.0, 1.0, 0.0][::-1]

    def test_equal_texts_are_a_tie_and_are_not_judged(self) -> None:
        asked: list[Any] = []

        def noting(prompt: Prompt, first: str, second: str) -> float:
            asked.append((first, second))
            return longer(prompt, first, second)

        assert Preference(noting)([said("x"), said("x"), said("xx")]).values == [0.25, 0.25, 1.0]
        assert asked == [("x", "xx")]

    def test_what_nobody_settles_abstains_and_is_counted(self) -> None:
        scores = Preference(lambda *_: None)([said("x"), said("xx"), said("y", "alone")])
        assert scores.values == [None, None, None]
        assert scores.counts == {"without_verdict": 1}

    def test_what_the_judge_counts_is_passed_on(self) -> None:
        class Counting:
            counts: ClassVar = Counter(requests=5)

            def __call__(self, *_: Any) -> float:
                self.counts["requests"] += 1
                return 1.0

        assert Preference(Counting())([said("x"), said("xx")]).counts == {"requests": 1, "without_verdict": 0}

    def test_a_rule_can_judge(self) -> None:
        whole = WeightedSum({"preference": {"reward": Preference(Rule())}})
        assert whole.needs_answer
        assert whole([said(r"\boxed{1}", answer="1"), said(r"\boxed{2}", answer="1")]).values == [1.0, 0.0]

    def test_without_a_judge(self) -> None:
        with pytest.raises(UserError, match=r"type \+judge@reward\.judge=llm"):
            Preference()
