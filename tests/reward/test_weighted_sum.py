import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given, strategies as st

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds, needs_of
from rlmods.reward import Accuracy, BySource, Cosine, Ensemble, Format, WeightedSum
from rlmods.reward.weighted_sum import Term, leaves
from rlmods.types import Response, Scores
from tests.reward.samples import response

CONF = Path(__file__).parents[2] / "conf"
Values = list[float | None]


def constant(result: object) -> object:
    return lambda responses: result


def weighted(*terms: tuple[float, object]) -> WeightedSum:
    return WeightedSum(
        {
            f"t{index}": {"weight": weight, "reward": constant(result)}
            for index, (weight, result) in enumerate(terms)
        }
    )


def total(*terms: tuple[float, object], rows: int = 2, tokens: int = 0) -> Scores:
    return weighted(*terms)([response(tokens=tokens)] * rows)


@given(
    st.lists(
        st.tuples(st.floats(-3, 3), st.lists(st.none() | st.floats(-9, 9), min_size=4, max_size=4)),
        min_size=1,
        max_size=4,
    )
)
def test_the_weighted_terms_add_up_to_the_total(terms: list[tuple[float, Values]]) -> None:
    scores = total(*terms, (2.0, [None] * 4), rows=4)
    for row, value in enumerate(scores):
        scored = [
            (weight, scores.terms[f"t{index}"][row])
            for index, (weight, _) in enumerate(terms)
            if weight
        ]
        weighted_scores = [weight * score for weight, score in scored if score is not None]
        assert value == (pytest.approx(sum(weighted_scores)) if weighted_scores else None)


def test_abstaining_terms_are_left_out_and_the_sum_abstains_if_all_do() -> None:
    assert list(total((1.0, [1.0, None, None]), (0.5, [1.0, 1.0, None]), rows=3)) == [
        1.5,
        0.5,
        None,
    ]


def test_names_of_terms_counts_and_columns() -> None:
    inner = WeightedSum({"a": {"reward": constant([1.0])}})
    graded = Scores([0.0], correct=[True], counts={"timeouts": 1}, columns={"extracted": ["5"]})
    later = Scores([0.0], correct=[False])
    rewards = {"plain": constant([2.0]), "acc": constant(graded), "in": inner, "z": constant(later)}
    scores = WeightedSum({name: {"reward": reward} for name, reward in rewards.items()})(
        [response()]
    )
    assert scores.correct == [True]
    assert scores.counts == {"acc/timeouts": 1}
    assert scores.columns == {"acc/extracted": ["5"]}
    assert scores.terms == {"plain": [2.0], "acc": [0.0], "in": [1.0], "in/a": [1.0], "z": [0.0]}


def test_token_rewards_sum_to_the_values() -> None:
    by_token = Scores([3.0, None], tokens=[[1.0, None, 2.0], [5.0, None, None]])
    scores = total((0.5, by_token), (2.0, [1.0, 1.0]), tokens=3)
    assert scores.tokens == [[0.5, None, 3.0], [None, None, 2.0]]
    assert [sum(x or 0.0 for x in row) for row in scores.tokens] == list(scores)
    with pytest.raises(ValueError, match="t0: 2 token rewards for the 3 tokens"):
        total((1.0, Scores([1.0, 1.0], tokens=[[1.0, 0.0], [1.0, 0.0]])), tokens=3)


def test_rewards_by_step_and_by_response_are_also_given_apart() -> None:
    by_token = Scores([3.0, None], tokens=[[1.0, None, 2.0], [5.0, None, None]])
    scores = total(
        (0.5, by_token), (2.0, [1.0, None]), (3.0, [1.0, 1.0]), (0.0, [9.0, 9.0]), tokens=3
    )
    assert scores.step_tokens == [[0.5, None, 1.0], [None, None, None]]
    assert scores.outcomes == [5.0, 3.0]
    assert scores.weights == {"t0": 0.5, "t1": 2.0, "t2": 3.0}
    assert total((1.0, by_token), tokens=3).outcomes is None
    assert total((1.0, [1.0, 2.0])).step_tokens is None
    assert total((1.0, [1.0, 2.0])).outcomes is None


def test_token_rewards_add_up_token_by_token() -> None:
    one, other = (
        Scores([3.0], tokens=[[1.0, None, 2.0, None]]),
        Scores([0.0], tokens=[[1.0, 0.0, None, -1.0]]),
    )
    assert total((1.0, one), (2.0, other), rows=1, tokens=4).tokens == [[3.0, 0.0, 2.0, -2.0]]
    assert total((1.0, one), (1.0, [None]), rows=1, tokens=4).tokens == one.tokens
    assert total((1.0, Scores([None], tokens=[[]])), rows=1, tokens=0).tokens == [[]]


class TestMonitor:
    """A term of weight 0."""

    GOLD = Scores([1.0, None], correct=[True, None])

    def test_does_not_count_in_the_sum(self) -> None:
        scores = total((1.0, [None, 0.25]), (0.0, [7.0, 7.0]))
        assert list(scores) == [None, 0.25]
        assert scores.terms["t1"] == [7.0, 7.0]

    def test_its_correctness_is_only_monitored(self) -> None:
        scores = total((1.0, [0.5, 0.5]), (0.0, self.GOLD))
        assert (scores.correct, scores.monitored) == ([True, None], True)
        nested = WeightedSum({"inner": {"reward": weighted((1.0, [0.5, 0.5]), (0.0, self.GOLD))}})(
            [response()] * 2
        )
        assert (nested.correct, nested.monitored) == ([True, None], True)

    def test_correctness_of_a_weighted_term_comes_first(self) -> None:
        weighted_scores = Scores([0.0, 0.0], correct=[False, True])
        scores = total((0.0, self.GOLD), (0.1, weighted_scores))
        assert (scores.correct, scores.monitored) == ([False, True], False)
        assert not total((1.0, [0.5, 0.5])).monitored

    def test_adds_no_step(self) -> None:
        steps = Scores([1.0, 1.0], tokens=[[1.0, None], [1.0, None]])
        assert total((1.0, steps), (0.0, self.GOLD), tokens=2).tokens == steps.tokens
        assert total((1.0, [1.0, 1.0]), (0.0, steps), tokens=2).tokens is None

    def test_needs_no_answer(self) -> None:
        terms = {"a": {"reward": Format()}, "b": {"reward": Accuracy(), "weight": 0.0}}
        assert not WeightedSum(terms).needs.answer

    def test_only_zero_weights_are_refused(self) -> None:
        with pytest.raises(UserError, match=r"every weight is 0.*reward\.terms\.t0\.weight=1"):
            weighted((0.0, [1.0]), (0.0, [1.0]))


@pytest.mark.parametrize(
    "result", [torch.tensor([1.0, 2.0]), (1, 2.0), [True, torch.tensor(2.0)], Scores([1.0, 2.0])]
)
def test_any_sequence_of_numbers_is_accepted(result: object) -> None:
    assert list(total((1.0, result))) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "reward t0: 1 values for 2 responses"),
        ([1.0, math.nan], "reward t0: response 1 scored nan"),
        ([1.0, math.inf], "reward t0: response 1 scored inf"),
        (["1.0", 1.0], "reward t0: response 0 scored '1.0', which is not a finite number"),
        ([{}, 1.0], "reward t0: response 0 scored {}, which is not a finite number"),
        (1.0, "reward t0: returned float"),
        ("ab", "reward t0: returned str"),
        (None, "reward t0: returned NoneType"),
        (Scores([1.0, 1.0], correct=[True]), "reward t0: 1 correct for 2 responses"),
        (Scores([1.0, 1.0], columns={"c": [1]}), "reward t0: 1 column c for 2 responses"),
        (Scores([1.0, 1.0], tokens=[[1.0], [None, math.nan]]), "reward t0: response 1 scored nan"),
    ],
)
def test_invalid_results_are_refused(result: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        total((1.0, result))


def test_an_exception_names_the_term_and_its_line() -> None:
    def broken(responses: Sequence[Response]) -> list[float]:
        raise KeyError("colour")

    with pytest.raises(
        RuntimeError, match=r"reward mine raised KeyError: 'colour' \(.*test_weighted_sum.py:\d+\)"
    ):
        WeightedSum({"mine": {"reward": broken}})([response()])


MALFORMED = [{"weight": 1.0}, {"reward": Format(), "w": 2}, {"reward": Format(), "weight": "1"}]


@pytest.mark.parametrize("terms", [{}, *({"a": term} for term in MALFORMED)])
def test_malformed_terms_are_refused(terms: dict[str, object]) -> None:
    with pytest.raises(
        UserError, match=r"WeightedSum|reward\.terms\.a\.weight=1: must be a number"
    ):
        WeightedSum(terms)  # type: ignore[arg-type]


def composed(tmp_path: Path, *overrides: str) -> object:
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "mine.yaml").write_text("_target_: rlmods.reward.Format\nstyle: boxed\n")
    settings = [f"hydra.searchpath=['file://{tmp_path}']", "reward=math", "rollout.max_tokens=40"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return instantiate(compose("train", [*settings, *overrides]).reward)


def test_the_math_option_and_its_overrides(tmp_path: Path) -> None:
    reward = composed(
        tmp_path,
        "reward.terms.format.weight=0.5",
        "~reward.terms.overlong",
        "+reward@reward.terms.mine.reward=mine",
    )
    assert isinstance(reward, WeightedSum)
    assert reward.weights == {"accuracy": 1.0, "format": 0.5, "mine": 1.0}
    scores = reward(
        [
            response(r"<answer>\boxed{5}</answer>", "5", tokens=40),
            response("<answer>6</answer>", "5"),
        ]
    )
    assert list(scores) == [2.5, -0.5]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "terms.a.reward": lambda reward: WeightedSum({"a": {"reward": reward}}),
    "rewards.math": lambda reward: BySource({"math": reward}),
    "rewards.b": lambda reward: Ensemble({"b": reward}),
    "reward": lambda reward: Cosine(max_length=10, reward=reward),
}


@dataclass(frozen=True)
class Demanding:
    needs: ClassVar[RewardNeeds] = RewardNeeds(answer=True, group=True, turns=True, runs_code=True)

    def __call__(self, responses: Any) -> Any: ...


@dataclass(frozen=True)
class BySteps:
    needs: ClassVar[RewardNeeds] = RewardNeeds(gives_steps=True, gives_outcomes=False)

    def __call__(self, responses: Any) -> Any: ...


@pytest.mark.parametrize("path", WRAPPERS)
def test_rewards_that_call_others_forward_their_needs_and_know_their_paths(path: str) -> None:
    member = Demanding()
    wrapper = WRAPPERS[path](WRAPPERS["rewards.b"](member))
    assert needs_of(wrapper, RewardNeeds) == Demanding.needs
    [leaf] = leaves(Term("reward", wrapper))
    assert (leaf.path, leaf.reward) == (f"reward.{path}.rewards.b", member)
    assert (leaf.weight, leaf.source) == (1.0, "math" if path == "rewards.math" else None)


def test_weights_and_sources_reach_through_rewards_that_call_others() -> None:
    inner = WeightedSum({"a": {"reward": Demanding(), "weight": 0.5}, "b": {"reward": BySteps()}})
    by_source = BySource({"x": Cosine(max_length=10, reward=inner), "y": Format()})
    outer = WeightedSum({"c": {"reward": by_source, "weight": 4.0}, "d": {"reward": Format()}})
    assert [(term.path, term.weight, term.source) for term in leaves(Term("reward", outer))] == [
        ("reward.terms.c.reward.rewards.x.reward.terms.a.reward", 2.0, "x"),
        ("reward.terms.c.reward.rewards.x.reward.terms.b.reward", 4.0, "x"),
        ("reward.terms.c.reward.rewards.y", 4.0, "y"),
        ("reward.terms.d.reward", 1.0, None),
    ]


def test_rewards_by_step_are_not_added_up() -> None:
    assert needs_of(WRAPPERS["terms.a.reward"](BySteps()), RewardNeeds).gives_steps
    assert not needs_of(WRAPPERS["reward"](BySteps()), RewardNeeds).gives_steps
    option = WRAPPERS["terms.a.reward"](BySteps())
    advice = r"type reward\.rewards\.b\.terms\.a\.reward\.aggregate=min"
    with pytest.raises(UserError, match=rf"one reward per step.*{advice}"):
        WRAPPERS["rewards.b"](option)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("inf"), "5"])
def test_a_time_limit_that_is_none_is_named_by_its_key(timeout_s: Any) -> None:
    term = {"reward": Accuracy(), "weight": 1.0, "timeout_s": timeout_s}
    with pytest.raises(UserError, match=rf"^reward\.terms\.right\.timeout_s={timeout_s}: must be "):
        WeightedSum({"right": term})
