from __future__ import annotations

import math
from collections import Counter

import pytest

from rlmods.judge.scored import by_score, verdict
from rlmods.types import Prompt, Response, Scores

ONE, OTHER = (Prompt(id="0", text=text, answer=text) for text in "xy")  # two prompts of one id


class TestVerdict:
    @pytest.mark.parametrize(
        ("first", "second", "tie", "wanted"),
        [
            (2.0, 1.0, 0.0, 1.0),
            (1.0, 2.0, 0.0, 0.0),
            (1.0, 1.0, 0.0, 0.5),
            (1.0, 1.5, 0.5, 0.5),
            (1.5, 1.0, 0.5, 0.5),
            (1.0, 1.51, 0.5, 0.0),
            (-1.0, -2.0, 0.0, 1.0),
            (None, 1.0, 9.0, None),
            (1.0, None, 0.0, None),
            (None, None, 0.0, None),
        ],
    )
    def test_is(self, first, second, tie, wanted):
        assert verdict(first, second, tie) == wanted


class TestByScore:
    def test_grades_every_response_once_in_one_call(self):
        calls: list[list[Response]] = []

        def length(responses):
            calls.append(list(responses))
            return [len(r.text) for r in responses]

        pairs = [(ONE, "a", "bb"), (ONE, "bb", "ccc"), (ONE, "ccc", "a"), (ONE, "bb", "dd")]
        assert by_score(pairs, length, 0.0, Counter()) == [0.0, 0.0, 1.0, 0.5]
        assert [[r.text for r in call] for call in calls] == [["a", "bb", "ccc", "dd"]]

    def test_a_response_is_graded_for_its_own_prompt(self):
        def right(responses):
            return [float(r.text == r.prompt.answer) for r in responses]

        assert by_score([(ONE, "x", "y"), (OTHER, "x", "y")], right, 0.0, Counter()) == [1.0, 0.0]

    def test_no_score_is_no_verdict(self):
        assert by_score([(ONE, "a", "b"), (ONE, "b", "c")], lambda rs: [None if r.text == "a" else 1.0 for r in rs], 0.0, Counter()) == [
            None,
            0.5,
        ]

    @pytest.mark.parametrize("score", [math.nan, math.inf, "1"])
    def test_what_is_no_score_is_refused(self, score):
        with pytest.raises(ValueError, match="reward judge: response 0 scored"):
            by_score([(ONE, "a", "b")], lambda rs: [score, 0.0], 0.0, Counter())

    def test_what_the_reward_counts_is_kept(self) -> None:
        counts: Counter[str] = Counter(errors=1)
        by_score([(ONE, "a", "b")], lambda rs: Scores([0.0] * len(rs), counts={"errors": 2, "timeouts": 0}), 0.0, counts)
        assert counts == {"errors": 3, "timeouts": 0}
