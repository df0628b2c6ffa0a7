"""The end of a run by the number of sampled tokens."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.callbacks import TokenBudget
from rlmods.run.files import read_rows
from tests.cli.test_main import RANDOM, train


def stopped_after(budget: TokenBudget, *tokens: int) -> list[bool]:
    trainer: Any = SimpleNamespace(should_stop=False)
    learner: Any = None
    ends = []
    for count in tokens:
        budget.on_iteration_end(trainer, learner, {"perf/sampled_tokens": count})
        ends.append(trainer.should_stop)
    return ends


def test_ends_with_the_iteration_that_reaches_the_budget() -> None:
    assert stopped_after(TokenBudget(100), 40, 59, 1, 5) == [False, False, True, True]


def test_without_a_limit_a_run_goes_on() -> None:
    assert stopped_after(TokenBudget(), 10**9, 10**9) == [False, False]


def test_iterations_without_samples_cost_nothing() -> None:
    trainer: Any = SimpleNamespace(should_stop=False)
    learner: Any = None
    TokenBudget(1).on_iteration_end(trainer, learner, {"train/loss": 1.0})
    assert not trainer.should_stop


def test_a_resumed_run_goes_on_counting() -> None:
    budget = TokenBudget(100)
    stopped_after(budget, 60)
    resumed = TokenBudget(100)
    resumed.load_state_dict(budget.state_dict())
    assert stopped_after(resumed, 39, 1) == [False, True]


def test_a_budget_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"callbacks\.budget\.max_tokens=0: must be at least 1"):
        TokenBudget(0)


@pytest.mark.slow
def test_counts_what_was_sampled_with_discarded_groups(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *RANDOM[:-1],
        "batch.prompts=4",
        "batch.samples=4",
        "batch.minibatches=1",
        "rollout.max_tokens=7",
        "callbacks.budget.max_tokens=2000",
        "trainer.max_iterations=50",
        f"run_dir={folder}",
    ]
    result = train(tmp_path, *words)
    assert "ended by TokenBudget" in result.out
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "train/draws" in row]
    assert max(row["train/draws"] for row in rows) > 1
    sampled = [row["perf/sampled_tokens"] for row in rows]
    assert sum(sampled[:-1]) < 2000 <= sum(sampled)

    words = [word for word in words if not word.startswith("trainer.")]
    again = train(tmp_path, *words, "trainer.max_iterations=60", "resume=auto")
    assert again.code == 0
    assert read_rows(folder / "metrics.jsonl")[-1]["iteration"] == rows[-1]["iteration"]
