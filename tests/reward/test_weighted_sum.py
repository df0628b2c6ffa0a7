from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward import Accuracy, Format, Overlong, WeightedSum
from rlmods.types import Response, Scores, UserError
from tests.reward.samples import response

CONF = Path(__file__).parents[2] / "conf"
Values = list[float | None]


def says(result: object) -> object:
    return lambda responses: result


def total(*terms: tuple[float, object], rows: int = 2, tokens: int = 0) -> Scores:
    parts = {f"t{index}": {"weight": weight, "reward": says(result)} for index, (weight, result) in enumerate(terms)}
    return WeightedSum(parts)([response(tokens=tokens)] * rows)


@given(st.lists(st.tuples(st.floats(-3, 3), st.lists(st.none() | st.floats(-9, 9), min_size=4, max_size=4)), min_size=1, max_size=4))
def test_the_weighted_terms_add_up_to_the_total(terms: list[tuple[float, Values]]) -> None:
    scores = total(*terms, rows=4)
    for row, value in enumerate(scores):
        scored = [(weight, scores.terms[f"t{index}"][row]) for index, (weight, _) in enumerate(terms)]
        weighted = [weight * score for weight, score in scored if score is not None]
        assert value == (pytest.approx(sum(weighted)) if weighted else None)


def test_a_term_that_abstains_is_left_out_and_the_sum_abstains_when_all_do() -> None:
    assert list(total((1.0, [1.0, None, None]), (0.5, [1.0, 1.0, None]), rows=3)) == [1.5, 0.5, None]


def test_terms_counts_columns_and_correctness_keep_their_names() -> None:
    inner = WeightedSum({"a": {"reward": says([1.0])}})
    graded = Scores([0.0], correct=[True], counts={"timeouts": 1}, columns={"extracted": ["5"]})
    later = Scores([0.0], correct=[False])
    rewards = {"plain": says([2.0]), "acc": says(graded), "in": inner, "z": says(later)}
    scores = WeightedSum({name: {"reward": reward} for name, reward in rewards.items()})([response()])
    assert scores.correct == [True]
    assert scores.counts == {"acc/timeouts": 1}
    assert scores.columns == {"acc/extracted": ["5"]}
    assert scores.terms == {"plain": [2.0], "acc": [0.0], "in": [1.0], "in/a": [1.0], "z": [0.0]}


def test_token_rewards_sum_to_the_values() -> None:
    by_token = Scores([3.0, None], tokens=[[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    scores = total((0.5, by_token), (2.0, [1.0, 1.0]), tokens=3)
    assert scores.tokens == [[0.5, 0.0, 3.0], [0.0, 0.0, 2.0]]
    assert [sum(row) for row in scores.tokens] == list(scores)
    with pytest.raises(ValueError, match="t0: 2 token rewards for the 3 tokens"):
        total((1.0, Scores([1.0, 1.0], tokens=[[1.0, 0.0], [1.0, 0.0]])), tokens=3)


@pytest.mark.parametrize("result", [torch.tensor([1.0, 2.0]), (1, 2.0), [True, torch.tensor(2.0)], Scores([1.0, 2.0])])
def test_any_sequence_of_numbers_will_do(result: object) -> None:
    assert list(total((1.0, result))) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "reward t0: 1 values for 2 responses"),
        ([1.0, math.nan], "reward t0: response 1 scored nan"),
        ([1.0, math.inf], "reward t0: response 1 scored inf"),
        (["1.0", 1.0], "reward t0: response 0 scored '1.0', which is no number"),
        ([{}, 1.0], "reward t0: response 0 scored {}, which is no number"),
        (1.0, "reward t0: returned float"),
        ("ab", "reward t0: returned str"),
        (None, "reward t0: returned NoneType"),
        (Scores([1.0, 1.0], correct=[True]), "reward t0: 1 correct for 2 responses"),
        (Scores([1.0, 1.0], columns={"c": [1]}), "reward t0: 1 column c for 2 responses"),
    ],
)
def test_a_result_that_is_no_score_is_refused_by_name(result: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        total((1.0, result))


def test_a_term_that_raises_is_named_with_its_line() -> None:
    def broken(responses: Sequence[Response]) -> list[float]:
        raise KeyError("colour")

    with pytest.raises(RuntimeError, match=r"reward mine raised KeyError: 'colour' \(.*test_weighted_sum.py:\d+\)"):
        WeightedSum({"mine": {"reward": broken}})([response()])


MALFORMED = [{"weight": 1.0}, {"reward": Format(), "w": 2}, {"reward": Format(), "weight": "1"}]


@pytest.mark.parametrize("terms", [{}, *({"a": term} for term in MALFORMED)])
def test_terms_written_wrongly_are_refused(terms: dict[str, object]) -> None:
    with pytest.raises(UserError, match="WeightedSum"):
        WeightedSum(terms)  # type: ignore[arg-type]


def test_it_needs_an_answer_if_a_term_does() -> None:
    assert WeightedSum({"a": {"reward": Format()}, "b": {"reward": Accuracy()}}).needs_answer
    assert not WeightedSum({"a": {"reward": Format()}}).needs_answer


def composed(tmp_path: Path, *overrides: str) -> object:
    search = f"hydra: {{searchpath: ['file://{CONF}']}}"
    (tmp_path / "train.yaml").write_text(f"{search}\ndefaults: [{{reward: math}}, _self_]\nrollout: {{max_tokens: 40}}\n")
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "mine.yaml").write_text("_target_: rlmods.reward.Format\nstyle: boxed\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        return instantiate(compose("train", list(overrides)).reward)


def test_the_math_option_and_its_overrides(tmp_path: Path) -> None:
    reward = composed(tmp_path, "reward.terms.format.weight=0.5", "~reward.terms.overlong", "+reward@reward.terms.mine.reward=mine")
    assert isinstance(reward, WeightedSum)
    assert reward.weights == {"accuracy": 1.0, "format": 0.5, "mine": 1.0}
    scores = reward([response(r"<answer>\boxed{5}</answer>", "5", tokens=40), response("<answer>6</answer>", "5")])
    assert list(scores) == [2.5, -0.5]


@pytest.mark.parametrize(("option", "part"), [("math", WeightedSum), ("accuracy", Accuracy), ("format", Format), ("overlong", Overlong)])
def test_every_option_makes_its_part(option: str, part: type, tmp_path: Path) -> None:
    reward = composed(tmp_path, f"reward={option}")
    assert isinstance(reward, part)
    scores = reward([response("<answer>5</answer>", "5", tokens=40)])  # type: ignore[operator]
    assert list(scores) == [{"math": 1.0 + 0.1 - 1.0, "overlong": -1.0}.get(option, 1.0)]
