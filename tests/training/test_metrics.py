"""Sums and counts, never means of means."""

from __future__ import annotations

import math

import pytest
import torch

from rlmods.training import meter as meters
from rlmods.training.meter import Meter
from rlmods.training.metrics import log_responses
from rlmods.types import Finish, Prompt, Response, Scores


class TestMean:
    def test_over_uneven_microbatches_is_that_of_all_elements(self) -> None:
        generator = torch.Generator().manual_seed(0)
        pieces = [torch.randn(shape, generator=generator) for shape in [(1, 1), (7, 5), (2, 31)]]
        wheres = [
            torch.rand(x.shape, generator=generator) < share
            for x, share in zip(pieces, [2.0, 0.2, 0.9], strict=True)
        ]
        meter = Meter()
        for x, where in zip(pieces, wheres, strict=True):
            meter.mean("masked", x, where)
            meter.mean("all", x)
        kept = torch.cat([x[where] for x, where in zip(pieces, wheres, strict=True)]).double()
        every = torch.cat([x.flatten() for x in pieces]).double()
        assert meter.compute() == pytest.approx(
            {"masked": kept.mean().item(), "all": every.mean().item()}
        )

    @pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
    def test_what_is_masked_does_not_count(self, garbage: float) -> None:
        meter = Meter()
        meter.mean("x", torch.tensor([1.0, garbage, 3.0]), torch.tensor([True, False, True]))
        meter.mean("x", torch.tensor([garbage]), torch.tensor([False]))
        assert meter.compute() == {"x": 2.0}

    def test_plain_numbers_weigh_one_each(self) -> None:
        meter = Meter()
        for x in (1.0, 2, 6.0):
            meter.mean("x", x)
        assert meter.compute() == {"x": 3.0}

    def test_keeps_no_graph(self) -> None:
        meter = Meter()
        meter.mean("x", torch.ones(2, requires_grad=True))
        assert not any(s.requires_grad for s in meter.metrics["x"].metric_state.values())

    def test_large_counts_do_not_round(self) -> None:
        meter = Meter()
        meter.mean("x", torch.full((2,), 1e8))
        meter.mean("x", 1.0)
        assert meter.compute()["x"] == pytest.approx((2e8 + 1) / 3, rel=1e-12)


class TestReset:
    def test_an_iteration_has_its_own_metrics(self) -> None:
        meter = Meter()
        found = []
        for values in ({"a": 1.0, "b": 5.0}, {"a": 3.0}, {"b": 7.0}):
            for name, value in values.items():
                meter.mean(f"mean {name}", value)
                meter.sum(f"sum {name}", int(value))
                meter.maximum(f"maximum {name}", torch.tensor([value]), torch.tensor([True]))
            found.append(meter.compute())
            meter.reset()
        assert found == [
            {
                f"{kind} {name}": value
                for name, value in values.items()
                for kind in ("mean", "sum", "maximum")
            }
            for values in ({"a": 1.0, "b": 5.0}, {"a": 3.0}, {"b": 7.0})
        ]
        assert meter.compute() == {}

    def test_metrics_of_another_name_and_kind_are_not_shared(self) -> None:
        meter = Meter()
        meter.mean("x", 2.0)
        meter.reset()
        meter.sum("x", 3)
        meter.mean("y", 4.0)
        assert meter.compute() == {"x": 3.0, "y": 4.0}


class TestMaximum:
    def test_is_the_largest_where_it_counts(self) -> None:
        meter = Meter()
        meter.maximum("x", torch.tensor([-3.0, math.nan, 9.0]), torch.tensor([True, False, False]))
        meter.maximum("x", torch.tensor([-5.0]), torch.tensor([True]))
        assert meter.compute() == {"x": -3.0}

    def test_an_empty_piece_changes_nothing(self) -> None:
        meter = Meter()
        meter.maximum("x", torch.tensor([2.0]), torch.tensor([True]))
        meter.maximum("x", torch.zeros(0), torch.zeros(0, dtype=torch.bool))
        assert meter.compute() == {"x": 2.0}


class TestEffectiveFraction:
    @pytest.mark.parametrize(
        ("weights", "expected"),
        [([0.3] * 5, 1.0), ([0.0, 0.0, 2.0, 0.0], 0.25), ([1.0, 3.0], 0.8), ([0.0, 0.0], 0.0)],
    )
    def test_is_that_of_kish(self, weights: list[float], expected: float) -> None:
        meter = Meter()
        meter.effective_fraction(
            "x", torch.tensor(weights), torch.ones(len(weights), dtype=torch.bool)
        )
        assert meter.compute() == {"x": pytest.approx(expected)}

    def test_over_microbatches_is_that_of_all_weights(self) -> None:
        """Not the mean of their own ones, which are 1."""
        meter = Meter()
        meter.effective_fraction(
            "x", torch.tensor([[1.0, math.nan]]), torch.tensor([[True, False]])
        )
        meter.effective_fraction("x", torch.tensor([[3.0]]), torch.tensor([[True]]))
        meter.effective_fraction("x", torch.tensor([[math.inf]]), torch.tensor([[False]]))
        assert meter.compute() == {"x": pytest.approx(0.8)}


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_stays(value: float) -> None:
    """The guard has to see it; only -inf stands for no element."""
    meter = Meter()
    meter.mean("mean", value)
    meter.maximum("maximum", torch.tensor([1.0, value]), torch.tensor([True, True]))
    found = meter.compute()
    assert str(found["mean"]) == str(value)
    assert str(found["maximum"]) == str(value)


def test_totals_add_up() -> None:
    meter = Meter()
    meter.sum("x", 2)
    meter.sum("x", 0)
    meter.sum("x", 5)
    assert meter.compute() == {"x": 7.0}


def test_what_nobody_added_to_is_left_out() -> None:
    meter = Meter()
    nobody = torch.zeros(3, dtype=torch.bool)
    meter.mean("mean", torch.ones(3), nobody)
    meter.maximum("maximum", torch.ones(3), nobody)
    meter.mean("empty", torch.zeros(0))
    meter.sum("total", 0)
    meter.mean("there", 1.0)
    assert meter.compute() == {"total": 0.0, "there": 1.0}


def test_masks_may_lie_elsewhere():
    """Correctness is known on the CPU, whatever the policy runs on."""
    Meter("meta").mean("x", torch.ones(2), torch.tensor([True, False]))


class TestRanks:
    """Ranks name what has happened to them."""

    def test_what_only_another_rank_has_named_is_there_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meter, other = Meter(), Meter()
        meter.sum("b/retries", 2)
        other.sum("a/retries", 1)
        other.mean("c", torch.tensor([1.0]))
        kinds = [
            {name: type(metric) for name, metric in one.metrics.items()} for one in (meter, other)
        ]
        monkeypatch.setattr(meters, "all_gather", lambda mine: kinds)
        assert meter.compute() == {"a/retries": 0.0, "b/retries": 2.0}
        assert set(meter.metrics) == {"a/retries", "b/retries", "c"}
        assert other.compute() == {"a/retries": 1.0, "b/retries": 0.0, "c": 1.0}


def answer(
    text: str, prompt: str = "a", source: str | None = None, finish: Finish = "stop"
) -> Response:
    return Response(
        Prompt(id=prompt, text=prompt, source=source),
        tokens=[1] * len(text),
        text=text,
        finish=finish,
    )


def logged(scores: Scores, responses: list[Response], group: list[int]) -> dict[str, float]:
    meter = Meter()
    log_responses(
        meter, responses, scores, torch.tensor(group), torch.ones(len(group), dtype=torch.bool)
    )
    return meter.compute()


class TestResponses:
    def test_unscored_answers_are_not_wrong_ones(self) -> None:
        responses = [answer(text) for text in "abcd"]
        found = logged(
            Scores([1.0, 0.0, None, None], correct=[True, False, None, None]),
            responses,
            [0, 0, 0, 0],
        )
        assert found["train/accuracy"] == 0.5
        assert found["train/reward"] == 0.5
        assert found["train/unscored_fraction"] == 0.5

    def test_truncated_responses_are_those_without_an_end(self) -> None:
        responses = [answer("a", finish="length"), answer("b"), answer("c"), answer("d")]
        assert (
            logged(Scores([0.0] * 4), responses, [0, 0, 1, 1])["train/truncated_fraction"] == 0.25
        )

    def test_lengths_and_distinct_texts(self) -> None:
        responses = [answer("aa"), answer("aa"), answer("b"), answer("cccc")]
        found = logged(Scores([0.0] * 4), responses, [0, 0, 1, 1])
        assert (found["train/response_tokens"], found["train/unique_fraction"]) == (2.25, 0.75)

    def test_sources_are_logged_apart(self) -> None:
        responses = [
            answer(text, source=source)
            for text, source in zip("abcde", ["x", "x", "y", "y", "y"], strict=True)
        ]
        scores = Scores([1.0, 0.0, 5.0, None, 7.0], correct=[True, False, True, None, None])
        found = logged(scores, responses, [0, 0, 1, 1, 1])
        assert (found["train/reward"], found["train/reward/x"], found["train/reward/y"]) == (
            3.25,
            0.5,
            6.0,
        )
        assert (found["train/accuracy"], found["train/accuracy/x"], found["train/accuracy/y"]) == (
            pytest.approx(2 / 3),
            0.5,
            1.0,
        )
        assert not [
            name
            for name in logged(scores, [answer("a")] * 5, [0] * 5)
            if name.endswith(("/x", "/y", "/None"))
        ]


class TestGroups:
    def test_standard_deviation_is_within_groups(self) -> None:
        values = [1.0, 3.0, 5.0, 10.0, 10.0, 10.0, 0.0, None, None]
        responses, group = [answer("a")] * 9, [7, 7, 7, 3, 3, 3, 5, 5, 5]
        found = logged(Scores(values), responses, group)
        assert found["train/reward_std"] == pytest.approx((2.0 + 0.0) / 2), (
            "a group with one scored response has none"
        )
        shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(0)).tolist()
        again = logged(
            Scores([values[i] for i in shuffled]), responses, [group[i] for i in shuffled]
        )
        assert again["train/reward_std"] == pytest.approx(found["train/reward_std"])

    def test_equal_rewards_have_exactly_none(self) -> None:
        assert logged(Scores([0.1] * 3), [answer("a")] * 3, [0, 0, 0])["train/reward_std"] == 0.0

    def test_all_correct_and_all_wrong(self) -> None:
        correct = [True, None, False, None, True, False, None, None]
        found = logged(
            Scores([0.0] * 8, correct=correct), [answer("a")] * 8, [0, 0, 1, 1, 2, 2, 3, 3]
        )
        assert (
            found["train/all_correct_fraction"]
            == found["train/all_wrong_fraction"]
            == pytest.approx(1 / 3)
        )
        assert "train/all_wrong_fraction" not in logged(
            Scores([0.0] * 2), [answer("a")] * 2, [0, 0]
        )
