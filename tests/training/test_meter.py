"""Sums and counts, never means of means."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.training import meter as meters
from rlmods.training.meter import Meter, PhaseTimer, peak_memory_mb


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

    def test_keeps_no_graph(self) -> None:
        meter = Meter()
        meter.mean("x", torch.ones(2, requires_grad=True))
        meter.compute()
        assert not any(x.requires_grad for x in meter._metrics["x"].metric_state.values())

    def test_large_counts_do_not_round(self) -> None:
        meter = Meter()
        meter.mean("x", torch.full((2,), 1e8))
        meter.mean("x", 1.0)
        assert meter.compute()["x"] == pytest.approx((2e8 + 1) / 3, rel=1e-12)


def test_an_iteration_has_its_own_metrics_after_a_reset() -> None:
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


def test_the_maximum_is_the_largest_where_it_counts() -> None:
    meter = Meter()
    meter.maximum("x", torch.tensor([-3.0, math.nan, 9.0]), torch.tensor([True, False, False]))
    meter.maximum("x", torch.tensor([-5.0]), torch.tensor([True]))
    assert meter.compute() == {"x": -3.0}


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


def test_what_nobody_added_to_is_left_out() -> None:
    meter = Meter()
    nobody = torch.zeros(3, dtype=torch.bool)
    meter.mean("mean", torch.ones(3), nobody)
    meter.maximum("maximum", torch.ones(3), nobody)
    meter.mean("empty", torch.zeros(0))
    meter.sum("total", 0)
    meter.mean("there", 1.0)
    assert meter.compute() == {"total": 0.0, "there": 1.0}


def test_nested_phases_are_claimed_once(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 6.0, 10.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    timer = PhaseTimer(lambda hook: None, lambda phase, error: None)
    with timer("score"), timer("teacher"):
        pass
    with timer("update"):
        pass
    assert timer.seconds == {"teacher": 3.0, "score": 6.0, "update": 2.0}
    assert timer.claimed_s == 8.0
    timer.reset()
    assert timer.claimed_s == 0.0


def test_a_phase_ends_when_a_gpu_has_done_its_work(monkeypatch):
    """Else its seconds are those of the next phase that waits."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: now.__setitem__(0, now[0] + 5))
    timer = PhaseTimer(lambda hook: None, lambda phase, error: None)
    for device, seconds in (("cpu", 0.0), ("cuda", 5.0)):
        timer.device = torch.device(device)
        with timer("update"):
            pass
        assert timer.seconds == {"update": seconds}


def test_a_microbatch_is_progress() -> None:
    timer = PhaseTimer(lambda hook: None, lambda phase, error: None)
    timer.advance()
    timer.advance()
    assert timer.progress == 2


def test_masks_may_lie_elsewhere():
    """Correctness is known on the CPU, whatever the policy runs on."""
    Meter("meta").mean("x", torch.ones(2), torch.tensor([True, False]))


def test_metrics_are_over_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that only another rank has named."""
    meter, other = Meter(), Meter()
    meter.sum("b/retries", 2)
    other.sum("a/retries", 1)
    for one, values in ((meter, [1.0, 2.0]), (other, [6.0])):
        where = torch.ones(len(values), dtype=torch.bool)
        one.mean("mean", torch.tensor(values))
        one.maximum("maximum", torch.tensor(values), where)
        one.effective_fraction("effective", torch.tensor(values), where)
    states: list[Any] = []
    monkeypatch.setattr(meters, "all_gather", lambda own: states.append(own) or [own])
    for one in (meter, other):
        one.compute()
    monkeypatch.setattr(meters, "all_gather", lambda own: states)
    expected = {"a/retries": 1, "b/retries": 2, "mean": 3.0, "maximum": 6.0}
    assert meter.compute() == expected | {"effective": pytest.approx(81 / (3 * 41))}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_that_of_the_process() -> None:
    status = Path("/proc/self/status").read_text()
    [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert peak_memory_mb(torch.device("cpu")) == pytest.approx(int(peak_kb) / 1024, rel=0.05)
