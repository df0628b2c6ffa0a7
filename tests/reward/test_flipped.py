"""Rewards of which a fraction is flipped."""

from collections.abc import Sequence

import pytest

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward import Flipped
from rlmods.types import Response, Scores
from tests.reward.samples import response


class Graded:
    """Half a point for each response, which is reported as correct."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([0.25] * len(responses), correct=[True] * len(responses))


class BySteps(Graded):
    needs = RewardNeeds(gives_steps=True)


ROWS = [response(f"<answer>{i}</answer>", "5") for i in range(2000)]


def test_a_fraction_is_flipped_and_correctness_stays() -> None:
    scores = Flipped(0.2, reward=Graded())(ROWS)
    flipped = [value == 0.75 for value in scores.values]
    assert 0.17 < sum(flipped) / len(ROWS) < 0.23
    assert set(scores.values) == {0.25, 0.75}
    assert scores.columns["flipped"] == flipped
    assert scores.correct == [True] * len(ROWS)
    assert scores.monitored


def test_equal_responses_are_graded_alike_in_any_batch() -> None:
    reward = Flipped(0.5, reward=Graded())
    assert reward(ROWS[:50]).values == reward(ROWS).values[:50]
    assert reward(ROWS[::-1]).values == reward(ROWS).values[::-1]
    assert Flipped(0.5, seed=1, reward=Graded())(ROWS).values != reward(ROWS).values


@pytest.mark.parametrize(("fraction", "value"), [(0.0, 0.25), (1.0, 0.75)])
def test_bounds_flip_none_and_all(fraction: float, value: float) -> None:
    assert set(Flipped(fraction, reward=Graded())(ROWS).values) == {value}


def test_unscored_responses_stay_unscored() -> None:
    scores = Flipped(1.0)([response("<answer>5</answer>", "5"), response("x", None)])
    assert scores.values == [0.0, None]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"reward\.fraction=1\.5: must be from 0 to 1"):
        Flipped(1.5)
    with pytest.raises(UserError, match="cannot be called"):
        Flipped(reward=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="one number per step"):
        Flipped(reward=BySteps())
