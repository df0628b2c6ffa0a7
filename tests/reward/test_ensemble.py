from __future__ import annotations

from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward import Accuracy, Ensemble, Format, WeightedSum
from rlmods.run import name
from rlmods.types import Scores, UserError
from tests.reward.samples import response

CONF = Path(__file__).parents[2] / "conf"
Values = list[float | None]


def says(result: object) -> Any:
    return lambda responses: result


def scores(how: Any, *results: object, rows: int = 1, tokens: int = 0) -> Scores:
    return Ensemble({f"r{i}": says(result) for i, result in enumerate(results)}, how)([response(tokens=tokens)] * rows)


@pytest.mark.parametrize(("how", "value"), [("mean", 2.0), ("min", -3.0), ("median", 1.5)])
def test_one_number_of_four(how: str, value: float) -> None:
    assert list(scores(how, [8.0], [-3.0], [1.0], [2.0])) == [value]
    assert list(scores(how, [8.0])) == [8.0]


MEMBERS = st.lists(st.lists(st.none() | st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=5)


@given(MEMBERS, st.sampled_from(["mean", "min", "median"]))
def test_those_that_abstain_are_left_out(members: list[Values], how: str) -> None:
    found = scores(how, *members, rows=3)
    for row, value in enumerate(found):
        known = [score for member in members if (score := member[row]) is not None]
        assert value == ({"mean": fmean, "min": min, "median": median}[how](known) if known else None)  # type: ignore[operator]
    assert found.terms == {f"r{i}": member for i, member in enumerate(members)}


def test_terms_counts_columns_and_correctness_keep_their_names() -> None:
    graded = Scores([0.0], correct=[True], counts={"timeouts": 1}, columns={"extracted": ["5"]})
    inner = WeightedSum({"a": {"reward": says([1.0])}})
    rewards = {"plain": says([4.0]), "acc": says(graded), "in": inner, "z": says(Scores([0.0], correct=[False]))}
    found = Ensemble(rewards, "mean")([response()])
    assert list(found) == [1.25]
    assert (found.correct, found.monitored) == ([True], False)
    assert found.terms == {"plain": [4.0], "acc": [0.0], "in": [1.0], "in/a": [1.0], "z": [0.0]}
    assert found.counts == {"acc/timeouts": 1}
    assert found.columns == {"acc/extracted": ["5"]}


def test_rewards_by_token_become_one_number() -> None:
    found = scores("min", Scores([3.0], tokens=[[1.0, 2.0]]), [5.0], tokens=2)
    assert (list(found), found.tokens) == ([3.0], None)


def test_hostile_texts() -> None:
    texts = ["", "é" * 1_000_000, "<answer>" * 100_000, "<answer>5</answer>"]
    found = Ensemble({"format": Format(), "accuracy": Accuracy()}, "min")([response(text, "5") for text in texts])
    assert list(found) == [0.0, 0.0, 0.0, 1.0]


def test_a_member_that_fails_is_named() -> None:
    with pytest.raises(RuntimeError, match="reward bad raised ZeroDivisionError"):
        Ensemble({"good": Format(), "bad": lambda responses: 1 / 0})([response()])
    with pytest.raises(ValueError, match="reward r1: response 0 scored nan"):
        scores("min", [1.0], [float("nan")])


def test_it_needs_an_answer_if_a_member_does() -> None:
    assert Ensemble({"a": Format(), "b": Accuracy()}).needs_answer
    assert not Ensemble({"a": Format()}).needs_answer


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rewards": {}}, r"no rewards: type \+reward@reward\.rewards\.NAME=OPTION"),
        ({"rewards": {"a": 1.0}}, r"rewards\.a cannot be called: type \+reward@reward\.rewards\.a=OPTION"),
        ({"rewards": {"a": Format()}, "how": "max"}, r"how='max' is none of mean, min, median"),
    ],
)
def test_settings_that_make_no_ensemble(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"Ensemble: {says}"):
        Ensemble(**settings)


def test_the_option_and_what_to_type(tmp_path: Path) -> None:
    typed = ["reward=ensemble", "reward.how=min", "+reward@reward.rewards.form=format", "+reward@reward.rewards.right=accuracy"]
    name.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        reward = instantiate(compose("train", [*typed, f"run_dir={tmp_path}"]).reward)
    assert reward == Ensemble({"form": Format(), "right": Accuracy()}, "min")
    assert list(reward([response("<answer>5</answer>", "5"), response("<answer>6</answer>", "5")])) == [1.0, 0.0]
