"""Two ranks take the steps that one takes: denominators are global, and no rank waits for another
that has done."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import ranks
from tests.support.two_ranks import STRATEGIES, THOROUGH, trained

QUICK = ("dapo", "ppo", "dpo")
"""Cases under FSDP of `make test`."""
RUNS = [pytest.param("fsdp", QUICK, case) for case in QUICK]
for strategy, (_, cases) in STRATEGIES.items():
    RUNS += [pytest.param(strategy, (), case, marks=pytest.mark.slow) for case in cases]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, by case, as far as asked for."""
    return {}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Both ranks, by strategy and cases (none: all of the strategy)."""

    @cache
    def run(strategy: str, cases: tuple[str, ...]) -> dict[str, Any]:
        out = tmp_path_factory.mktemp(strategy) / "out.pt"
        ranks.run("tests.support.two_ranks", [str(out), strategy, *cases], timeout_s=540)
        found: dict[str, Any] = torch.load(out, weights_only=True)
        return found

    return run


@pytest.mark.parametrize(("strategy", "cases", "case"), RUNS)
def test_two_ranks_are_one(
    strategy: str,
    cases: tuple[str, ...],
    case: str,
    together: Any,
    alone: dict[str, Any],
    tmp_path: Path,
) -> None:
    if case not in alone:
        alone[case] = trained(case, tmp_path)
    one, two = alone[case], together(strategy, cases)[case]
    assert two["said"] == one["said"]
    moved = {
        name: float((weight - one["before"][name]).abs().max())
        for name, weight in one["weights"].items()
    }
    assert max(moved.values()) > 1e-4
    torch.testing.assert_close(two["weights"], one["weights"], rtol=0, atol=1e-6)
    assert [sorted(row) for row in two["rows"]] == [sorted(row) for row in one["rows"]]
    for mine, theirs in zip(one["rows"], two["rows"], strict=True):
        for name, value in mine.items():
            assert theirs[name] == pytest.approx(value, rel=1e-4, abs=2e-6), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "precision"),
    [("ddp", "32-true"), ("fsdp", "32-true"), ("fsdp", "bf16-mixed"), ("hybrid", "32-true")],
)
def test_no_shape_makes_a_rank_wait(strategy: str, precision: str) -> None:
    ranks.run(
        "tests.support.random_shapes",
        ["50" if THOROUGH else "4", "0", strategy, precision],
        timeout_s=540,
    )
