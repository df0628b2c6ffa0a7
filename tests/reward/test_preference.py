"""Tests of the win rate within a group."""

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rlmods.errors import UserError
from rlmods.judge import Rule
from rlmods.reward import Preference, WeightedSum
from rlmods.types import Prompt, Response


def respond(text: str, prompt: str = "a", answer: str | None = None) -> Response:
    return Response(Prompt(id=prompt, text=prompt, answer=answer), text=text)


def longer(prompt: Prompt, first: str, second: str) -> float:
    return 0.5 if len(first) == len(second) else float(len(first) > len(second))


class TestPreference:
    def test_is_the_win_rate(self) -> None:
        assert Preference(longer)(
            [respond("x"), respond("xxx"), respond("xx"), respond("yy")]
        ).values == pytest.approx([0, 1, 0.5, 0.5])

    def test_mean_over_a_group_is_one_half(self) -> None:
        values = Preference(longer)([respond("x" * n) for n in (1, 1, 2, 5, 5, 7, 9)]).values
        assert sum(v for v in values if v is not None) == pytest.approx(3.5)

    def test_compares_within_groups_and_keeps_the_order_of_rows(self) -> None:
        rows = [respond("x", "a"), respond("y" * 9, "b"), respond("xx", "a"), respond("y", "b")]
        assert Preference(longer)(rows).values == [0.0, 1.0, 1.0, 0.0]
        assert Preference(longer)(rows[::-1]).values == [0.0, 1.0, 1.0, 0.0][::-1]

    def test_two_occurrences_of_a_prompt_are_two_groups(self) -> None:
        rows = [respond(text) for text in ("x", "xx", "xxx", "xxxx")]
        later = [replace(row, prompt=replace(row.prompt, time=1)) for row in rows[2:]]
        assert Preference(longer)([*rows[:2], *later]).values == [0.0, 1.0, 0.0, 1.0]

    def test_equal_texts_are_a_tie_without_a_comparison(self) -> None:
        compared: list[Any] = []

        def recording_judge(prompt: Prompt, first: str, second: str) -> float:
            compared.append((first, second))
            return longer(prompt, first, second)

        assert Preference(recording_judge)([respond("x"), respond("x"), respond("xx")]).values == [
            0.25,
            0.25,
            1.0,
        ]
        assert compared == [("x", "xx")]

    def test_abstains_without_a_verdict_and_counts_the_pair(self) -> None:
        scores = Preference(lambda *_: None)([respond("x"), respond("xx"), respond("y", "single")])
        assert scores.values == [None, None, None]
        assert scores.counts == {"without_verdict": 1}

    def test_includes_the_counts_of_the_judge(self) -> None:
        class CountingJudge:
            counts: ClassVar = Counter(requests=5)

            def __call__(self, *_: Any) -> float:
                self.counts["requests"] += 1
                return 1.0

        assert Preference(CountingJudge())([respond("x"), respond("xx")]).counts == {
            "requests": 1,
            "without_verdict": 0,
        }

    def test_with_a_rule_as_judge(self) -> None:
        total = WeightedSum({"preference": {"reward": Preference(Rule())}})
        assert total.needs.answer
        assert total(
            [respond(r"\boxed{1}", answer="1"), respond(r"\boxed{2}", answer="1")]
        ).values == [1.0, 0.0]

    def test_rejects_a_missing_judge(self) -> None:
        with pytest.raises(UserError, match=r"type \+judge@reward\.judge=llm"):
            Preference()
