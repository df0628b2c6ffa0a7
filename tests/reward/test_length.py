"""Rewards and penalties by the number of tokens."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.reward import Cosine, Format, Length, Overlong, WeightedSum
from rlmods.reward.length import overlong_penalty
from rlmods.types import Response, Scores
from tests.reward.samples import response


def test_every_sampled_token_is_penalized() -> None:
    rows = [response("x" * 100, tokens=n) for n in range(4)]
    assert list(Length(0.5)(rows)) == [0.0, -0.5, -1.0, -1.5]


GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "rl_math.json"


def test_is_zero_then_a_ramp_then_minus_one() -> None:
    assert list(Overlong(8, 4)([response(tokens=n) for n in range(11)])) == [
        0,
        0,
        0,
        0,
        0,
        -0.25,
        -0.5,
        -0.75,
        -1,
        -1,
        -1,
    ]


def test_cache_length_defaults_to_a_fifth_and_may_be_zero() -> None:
    assert Overlong(100).cache == 20
    assert list(Overlong(4, 0)([response(tokens=n) for n in (4, 5)])) == [0.0, -1.0]


def test_matches_golden_values() -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden numbers at {GOLDEN}")
    for case in json.loads(GOLDEN.read_text())["soft_overlong"]:
        assert overlong_penalty(case["length"], case["L_max"], case["L_cache"]) == pytest.approx(
            case["reward"], abs=1e-12
        )


def reports(*correct: bool | None, **fields: Any) -> Callable[[Sequence[Response]], Scores]:
    return lambda responses: Scores([7.0] * len(correct), correct=correct, **fields)


def lengths(*tokens: int) -> list[Response]:
    return [response(tokens=n) for n in tokens]


def test_correct_answers_decrease_and_wrong_ones_increase_with_length() -> None:
    num_tokens = [0, 2, 4, 6, 8, 20]
    offset = math.sqrt(2) / 4
    correct = Cosine(8, reward=reports(*[True] * 6))(lengths(*num_tokens))
    wrong = Cosine(8, reward=reports(*[False] * 6))(lengths(*num_tokens))
    assert list(correct) == pytest.approx([2.0, 1.5 + offset, 1.5, 1.5 - offset, 1.0, 1.0])
    assert list(wrong) == pytest.approx([-10.0, -5 - 10 * offset, -5.0, -5 + 10 * offset, 0.0, 0.0])
    assert (correct.correct, wrong.correct) == ((True,) * 6, (False,) * 6)


def test_truncated_responses_and_unknown_correctness() -> None:
    truncated = [replace(row, finish="length") for row in lengths(3, 3, 3)]
    result = Cosine(8, truncated=-0.7, reward=reports(True, False, None, None))(
        [*truncated, *lengths(3)]
    )
    assert result.values == [-0.7, -0.7, None, None]
    assert result.correct == (True, False, None, None)


def test_uses_accuracy_by_default() -> None:
    texts = [
        ("<answer>5</answer>", "5"),
        ("<answer>6</answer>", "5"),
        ("<answer>5</answer>", None),
        ("", "5"),
        ("é" * 1_000_000, "5"),
    ]
    result = Cosine(8)([response(text, answer, tokens=4) for text, answer in texts])
    assert list(result) == [
        pytest.approx(1.5),
        pytest.approx(-5.0),
        None,
        pytest.approx(-5.0),
        pytest.approx(-5.0),
    ]
    assert result.correct == [True, False, None, False, False]
    assert result.columns == {"extracted": ["5", "6", "5", None, None]}
    assert set(result.counts.values()) == {0}


def test_keeps_counts_columns_and_terms_of_the_other_reward() -> None:
    other = reports(
        True,
        monitored=True,
        counts={"odd": 1},
        columns={"c": ["x"]},
        terms={"t": [2.0]},
        tokens=[[7.0]],
    )
    result = Cosine(8, reward=other)(lengths(1))
    assert (result.counts, result.columns, result.terms) == ({"odd": 1}, {"c": ["x"]}, {"t": [2.0]})
    assert (result.monitored, result.tokens) == (False, None)
    assert WeightedSum({"cosine": {"reward": Cosine(8, reward=other)}})(lengths(1)).counts == {
        "cosine/odd": 1
    }


def test_rejects_a_reward_without_correctness() -> None:
    with pytest.raises(
        UserError, match=r"does not report correctness: type \+reward@reward\.reward=accuracy"
    ):
        Cosine(8, reward=Format())([response()])
    with pytest.raises(UserError, match=r"type \+reward@reward\.reward="):
        Cosine(8, reward=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reward cosine: 1 values for 2 responses"):
        Cosine(8, reward=reports(True))(lengths(1, 1))
