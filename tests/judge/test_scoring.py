from __future__ import annotations

import math
from collections import Counter

import pytest

from rlmods.judge import compare, rank
from rlmods.judge.scoring import compare_scores, verdict
from rlmods.needs import JudgeNeeds
from rlmods.types import Prompt, Response, Scores, as_response

# two prompts with the same id
ONE, OTHER = (Prompt(id="0", text=text, answer=text) for text in "xy")


class TestVerdict:
    @pytest.mark.parametrize(
        ("first", "second", "tie", "expected"),
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
    def test_matches_the_table(self, first, second, tie, expected):
        assert verdict(first, second, tie) == expected


class TestCandidates:
    PAIR = (ONE, Response(ONE, text="a", finish="length"), "b")

    def test_a_judge_of_texts_gets_texts(self) -> None:
        seen = []
        assert compare(lambda prompt, *texts: seen.append(texts) or 0.5, [self.PAIR]) == [0.5]
        assert seen == [("a", "b")]

    def test_a_judge_that_accepts_responses_gets_them(self) -> None:
        class Strict:
            needs = JudgeNeeds(responses=True)

            def __call__(self, prompt, first, second):
                finishes = [as_response(prompt, x).finish for x in (first, second)]
                return float(finishes[0] == "stop") if finishes[0] != finishes[1] else 0.5

        assert compare(Strict(), [self.PAIR, (ONE, "a", "b")]) == [0.0, 0.5]
        assert rank(Strict(), ONE, [self.PAIR[1], "b"]) == [1, 0]


class TestCompareScores:
    def test_scores_every_response_once_in_one_call(self):
        calls: list[list[Response]] = []

        def length(responses):
            calls.append(list(responses))
            return [len(r.text) for r in responses]

        pairs = [(ONE, "a", "bb"), (ONE, "bb", "ccc"), (ONE, "ccc", "a"), (ONE, "bb", "dd")]
        assert compare_scores(pairs, length, 0.0, Counter()) == [0.0, 0.0, 1.0, 0.5]
        assert [[r.text for r in call] for call in calls] == [["a", "bb", "ccc", "dd"]]

    def test_scores_a_response_with_its_own_prompt(self):
        def is_correct(responses):
            return [float(r.text == r.prompt.answer) for r in responses]

        assert compare_scores([(ONE, "x", "y"), (OTHER, "x", "y")], is_correct, 0.0, Counter()) == [
            1.0,
            0.0,
        ]

    def test_no_verdict_without_a_score(self):
        def abstain_on_a(responses):
            return [None if r.text == "a" else 1.0 for r in responses]

        assert compare_scores([(ONE, "a", "b"), (ONE, "b", "c")], abstain_on_a, 0.0, Counter()) == [
            None,
            0.5,
        ]

    @pytest.mark.parametrize("score", [math.nan, math.inf, "1"])
    def test_rejects_invalid_scores(self, score):
        with pytest.raises(ValueError, match="reward judge: response 0 scored"):
            compare_scores([(ONE, "a", "b")], lambda rs: [score, 0.0], 0.0, Counter())

    def test_adds_the_counts_of_the_reward(self) -> None:
        counts: Counter[str] = Counter(errors=1)
        compare_scores(
            [(ONE, "a", "b")],
            lambda rs: Scores([0.0] * len(rs), counts={"errors": 2, "timeouts": 0}),
            0.0,
            counts,
        )
        assert counts == {"errors": 3, "timeouts": 0}
