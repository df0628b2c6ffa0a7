from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlmods.errors import UserError
from rlmods.reward import Ensemble, WeightedSum
from rlmods.types import Scores
from tests.reward.samples import response

Values = list[float | None]


def returns(scores: object) -> Any:
    return lambda responses: scores


def scores(how: Any, *results: object, rows: int = 1, tokens: int = 0) -> Scores:
    return Ensemble({f"r{i}": returns(result) for i, result in enumerate(results)}, how)(
        [response(tokens=tokens)] * rows
    )


@pytest.mark.parametrize(("how", "value"), [("mean", 2.0), ("min", -3.0), ("median", 1.5)])
def test_reduces_the_scores_to_one_number(how: str, value: float) -> None:
    assert list(scores(how, [8.0], [-3.0], [1.0], [2.0])) == [value]
    assert list(scores(how, [8.0])) == [8.0]


MEMBERS = st.lists(
    st.lists(st.none() | st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=5
)


@given(MEMBERS, st.sampled_from(["mean", "min", "median"]))
def test_skips_rewards_that_abstain(members: list[Values], how: str) -> None:
    result = scores(how, *members, rows=3)
    for row, value in enumerate(result):
        row_scores = [score for member in members if (score := member[row]) is not None]
        assert value == (
            {"mean": fmean, "min": min, "median": median}[how](row_scores) if row_scores else None
        )  # type: ignore[operator]
    assert result.terms == {f"r{i}": member for i, member in enumerate(members)}


def test_terms_counts_and_columns_are_named_after_the_rewards() -> None:
    graded = Scores([0.0], correct=[True], counts={"timeouts": 1}, columns={"extracted": ["5"]})
    inner = WeightedSum({"a": {"reward": returns([1.0])}})
    rewards = {
        "plain": returns([4.0]),
        "acc": returns(graded),
        "in": inner,
        "z": returns(Scores([0.0], correct=[False])),
    }
    result = Ensemble(rewards, "mean")([response()])
    assert list(result) == [1.25]
    assert (result.correct, result.monitored) == ([True], False)
    assert result.terms == {"plain": [4.0], "acc": [0.0], "in": [1.0], "in/a": [1.0], "z": [0.0]}
    assert result.counts == {"acc/timeouts": 1}
    assert result.columns == {"acc/extracted": ["5"]}


def test_per_token_rewards_become_one_number() -> None:
    result = scores("min", Scores([3.0], tokens=[[1.0, 2.0]]), [5.0], tokens=2)
    assert (list(result), result.tokens) == ([3.0], None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rewards": {}}, r"needs rewards: type \+reward@reward\.rewards\.NAME=OPTION"),
        ({"rewards": {"a": 1.0}}, r"type \+reward@reward\.rewards\.a=OPTION"),
    ],
)
def test_rejects_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Ensemble(**settings)
