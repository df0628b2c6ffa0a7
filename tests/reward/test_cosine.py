from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rlmods.reward import Accuracy, Cosine, Format, WeightedSum
from rlmods.reward.cosine import cosine
from rlmods.types import Response, Scores, UserError
from tests.reward.samples import response


def says(*correct: bool | None, **more: Any) -> Callable[[Sequence[Response]], Scores]:
    return lambda responses: Scores([7.0] * len(correct), correct=correct, **more)


def lengths(*tokens: int) -> list[Response]:
    return [response(tokens=n) for n in tokens]


def test_right_answers_go_down_and_wrong_ones_up() -> None:
    at = [0, 2, 4, 6, 8, 20]
    bend = math.sqrt(2) / 8
    right = Cosine(8, reward=says(*[True] * 6))(lengths(*at))
    wrong = Cosine(8, reward=says(*[False] * 6))(lengths(*at))
    assert list(right) == pytest.approx([1.0, 0.75 + bend, 0.75, 0.75 - bend, 0.5, 0.5])
    assert list(wrong) == pytest.approx([-1.0, -0.75 - bend, -0.75, -0.75 + bend, -0.5, -0.5])
    assert (right.correct, wrong.correct) == ((True,) * 6, (False,) * 6)


def test_each_end_is_its_own_setting() -> None:
    ends = {"correct_short": 4.0, "correct_long": 3.0, "wrong_short": -10.0, "wrong_long": -5.0}
    part = Cosine(10, **ends, reward=says(True, True, False, False))
    assert list(part(lengths(0, 10, 0, 10))) == pytest.approx([4.0, 3.0, -10.0, -5.0])


def test_it_is_steady_and_symmetric_about_the_middle() -> None:
    curve = [cosine(n, 40, 2.0, -1.0) for n in range(60)]
    assert all(a >= b for a, b in pairwise(curve))
    assert all(curve[n] + curve[40 - n] == pytest.approx(1.0) for n in range(41))
    assert curve[40:] == [curve[40]] * 20
    assert [cosine(n, 40, 0.3, 0.3) for n in range(60)] == [0.3] * 60


def test_what_was_cut_off_gets_that_and_what_is_unknown_gets_nothing() -> None:
    cut = [replace(row, finish="length") for row in lengths(3, 3, 3)]
    found = Cosine(8, truncated=-0.7, reward=says(True, False, None, None))([*cut, *lengths(3)])
    assert found.values == [-0.7, -0.7, None, None]
    assert found.correct == (True, False, None, None)


def test_tokens_count_not_characters() -> None:
    assert list(Cosine(8)([response("<answer>5</answer>" + " " * 100, "5", tokens=0)])) == [1.0]


def test_accuracy_decides_where_nothing_else_does() -> None:
    texts = [("<answer>5</answer>", "5"), ("<answer>6</answer>", "5"), ("<answer>5</answer>", None), ("", "5"), ("é" * 1_000_000, "5")]
    found = Cosine(8)([response(text, answer, tokens=4) for text, answer in texts])
    assert list(found) == [pytest.approx(0.75), pytest.approx(-0.75), None, pytest.approx(-0.75), pytest.approx(-0.75)]
    assert found.correct == [True, False, None, False, False]
    assert found.columns == {"extracted": ["5", "6", "5", None, None]}
    assert found.counts == {"timeouts": 0, "errors": 0}


def test_what_the_other_reward_knows_is_kept() -> None:
    knows = says(True, monitored=True, counts={"odd": 1}, columns={"c": ["x"]}, terms={"t": [2.0]}, tokens=[[7.0]])
    found = Cosine(8, reward=knows)(lengths(1))
    assert (found.counts, found.columns, found.terms) == ({"odd": 1}, {"c": ["x"]}, {"t": [2.0]})
    assert (found.monitored, found.tokens) == (False, None)
    assert WeightedSum({"cosine": {"reward": Cosine(8, reward=knows)}})(lengths(1)).counts == {"cosine/odd": 1}


def test_it_needs_an_answer_if_the_other_reward_does() -> None:
    assert Cosine(8).needs_answer
    assert Cosine(8, reward=WeightedSum({"a": {"reward": Accuracy()}})).needs_answer
    assert not Cosine(8, reward=Format()).needs_answer


def test_a_reward_that_does_not_know_is_refused() -> None:
    with pytest.raises(UserError, match=r"does not say which responses are right: type \+reward@reward\.reward=accuracy"):
        Cosine(8, reward=Format())([response()])
    with pytest.raises(UserError, match=r"type \+reward@reward\.reward="):
        Cosine(8, reward=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reward cosine: 1 values for 2 responses"):
        Cosine(8, reward=says(True))(lengths(1, 1))


@pytest.mark.parametrize("name", ["correct_short", "correct_long", "wrong_short", "wrong_long", "truncated"])
def test_settings_out_of_range(name: str) -> None:
    with pytest.raises(UserError, match=f"Cosine: {name}=nan is not finite: type a number"):
        Cosine(8, **{name: math.nan})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"Cosine: max_length=0 is less than one token: type reward\.max_length=1024"):
        Cosine(0)
