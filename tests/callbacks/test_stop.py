"""Signals end the run after the iteration, or within it if there is no time; a budget of tokens ends
it, and so does a rank that makes no progress."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.plugins.environments import SLURMEnvironment

from rlmods.callbacks import GracefulStop, IterationCheckpoint, TokenBudget
from rlmods.callbacks.stop import EX_TEMPFAIL, DeadlineError
from rlmods.run.files import read_rows
from rlmods.training.evaluation import Validation
from tests.callbacks.stubs import Tiny, fit
from tests.cli.test_main import RANDOM, train as train_by_command
from tests.faults.inject import SendSignals
from tests.support.processes import Process
from tests.support.tiny_setup import SPLITS, fit as train, learner

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _handlers_are_restored() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((signal.SIGINT,), 130),
        ((signal.SIGTERM,), 75),
        ((signal.SIGUSR1,), 75),
        ((signal.SIGUSR2,), 75),
        ((signal.SIGTERM, signal.SIGTERM), 75),
        ((signal.SIGINT, signal.SIGTERM), 75),
    ],
)
def test_iteration_ends_and_is_saved(
    tmp_path: Path, numbers: tuple[int, ...], status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = GracefulStop()
    trained = fit(
        Tiny(batches=2), 9, [IterationCheckpoint(tmp_path), stop, SendSignals(numbers, 3)]
    )
    assert (trained.iteration, stop.exit_status, stop.iteration_aborted) == (3, status, False)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration_000003.ckpt"]
    assert "stopping after iteration 3" in capfd.readouterr().err


class TestDeadline:
    def test_iteration_that_would_not_end_is_aborted_at_once(self, tmp_path: Path) -> None:
        """Expected from the durations of the latest iterations, without waiting for the
        deadline."""
        stop = GracefulStop(grace_s=30)
        started = time.monotonic()
        sender = SendSignals([signal.SIGUSR1], 3, duration_s=60.0)
        trained = learner()
        with pytest.raises(DeadlineError, match="iteration 3 would not have ended within 30 s"):
            train(trained, 9, callbacks=(IterationCheckpoint(tmp_path, every=1), stop, sender))
        assert (trained.iteration, stop.exit_status, stop.iteration_aborted) == (
            2,
            EX_TEMPFAIL,
            True,
        )
        assert time.monotonic() - started < 30
        assert "iteration_000002.ckpt" in {path.name for path in tmp_path.iterdir()}

    @pytest.mark.parametrize("slow_phase", ["sampling", "reward", "microbatches"])
    def test_iteration_is_aborted_at_the_deadline(self, slow_phase: str) -> None:
        class Slow(L.Callback):
            def on_train_start(self, trainer: L.Trainer, learner: Any) -> None:
                if slow_phase == "sampling":
                    learner.rollout.on_tokens = lambda *_: time.sleep(0.5)

        def reward(responses: Any) -> list[float]:
            if slow_phase == "reward":
                time.sleep(0.5)
            return [float(r.tokens[0] % 2) for r in responses]

        trained, stop = learner(reward=reward), GracefulStop(grace_s=0.3)
        if slow_phase == "microbatches":
            trained.optimize = lambda rows, plan: (
                time.sleep(0.5),
                list(trained.microbatches(rows)),
            )
        with pytest.raises(DeadlineError):
            train(trained, 3, callbacks=(Slow(), stop, SendSignals([signal.SIGTERM], 1)))
        assert trained.iteration == 0

    @pytest.mark.parametrize("grace_s", [60.0, None])
    def test_iteration_ends_before_the_deadline(self, grace_s: float | None) -> None:
        stop = GracefulStop(grace_s)
        trained = learner(
            reward=lambda responses: time.sleep(0.2) or [float(r.tokens[0] % 2) for r in responses]
        )
        train(trained, 3, callbacks=(stop, SendSignals([signal.SIGTERM], 1)))
        assert (trained.iteration, stop.exit_status) == (1, 75)


def test_signal_during_validation_ends_before_the_next_iteration() -> None:
    class DuringValidation(L.Callback):
        def on_validation_metrics(
            self, trainer: L.Trainer, learner: Any, metrics: Any, rows: Any
        ) -> None:
            if learner.iteration == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    trained = learner(validation=Validation(every=1), validation_prompts=list(SPLITS.val))
    train(trained, 9, callbacks=(GracefulStop(), DuringValidation()))
    assert trained.iteration == 2


def test_signal_of_another_rank_stops_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are reduced over ranks."""
    stop = GracefulStop()

    class SignalOfOtherRank(L.Callback):
        def on_train_batch_start(
            self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int
        ) -> None:
            if learner.iteration == 1:
                monkeypatch.setattr(
                    trainer.strategy, "reduce", lambda x, reduce_op: x + signal.SIGTERM
                )

    assert fit(Tiny(), 9, [stop, SignalOfOtherRank()]).iteration == 2
    assert stop.exit_status == EX_TEMPFAIL


def test_lightnings_requeueing_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SLURMEnvironment()
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    monkeypatch.setattr(trainer.strategy, "cluster_environment", environment, raising=False)
    GracefulStop().setup(trainer, None, "fit")
    assert not environment.auto_requeue


def test_ctrl_c_before_training() -> None:
    early, late = GracefulStop(), GracefulStop()
    assert early.interrupted_before_training()
    assert early.exit_status == 130
    late.handle_signal(signal.SIGINT)
    assert not late.interrupted_before_training(), "the second one stops at once"


def test_rank_stops_after_a_lost_rank_that_met_the_deadline() -> None:
    stop = GracefulStop()
    assert not stop.interrupted_with_other_ranks()
    stop.handle_signal(signal.SIGUSR1)
    assert stop.interrupted_with_other_ranks()
    assert (stop.iteration_aborted, stop.exit_status) == (True, 75)


def stopped_after(budget: TokenBudget, *tokens: int) -> list[bool]:
    trainer: Any = SimpleNamespace(should_stop=False)
    learner: Any = None
    ends = []
    for count in tokens:
        budget.on_iteration_metrics(trainer, learner, {"perf/sampled_tokens": count})
        ends.append(trainer.should_stop)
    return ends


def test_ends_with_the_iteration_that_reaches_the_budget() -> None:
    assert stopped_after(TokenBudget(100), 40, 59, 1, 5) == [False, False, True, True]


def test_without_a_limit_a_run_goes_on() -> None:
    assert stopped_after(TokenBudget(), 10**9, 10**9) == [False, False]


def test_iterations_without_samples_cost_nothing() -> None:
    trainer: Any = SimpleNamespace(should_stop=False)
    learner: Any = None
    TokenBudget(1).on_iteration_metrics(trainer, learner, {"train/loss": 1.0})
    assert not trainer.should_stop


def test_a_resumed_run_goes_on_counting() -> None:
    budget = TokenBudget(100)
    stopped_after(budget, 60)
    resumed = TokenBudget(100)
    resumed.load_state_dict(budget.state_dict())
    assert stopped_after(resumed, 39, 1) == [False, True]


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
    result = train_by_command(tmp_path, *words)
    assert "ended by TokenBudget" in result.out
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "train/draws" in row]
    assert max(row["train/draws"] for row in rows) > 1
    sampled = [row["perf/sampled_tokens"] for row in rows]
    assert sum(sampled[:-1]) < 2000 <= sum(sampled)
    summary = json.loads((folder / "summary.json").read_text())
    validated = [
        row["iteration"] for row in read_rows(folder / "metrics.jsonl") if "val/accuracy" in row
    ]
    assert validated[-1] == summary["iterations"]

    words = [word for word in words if not word.startswith("trainer.")]
    again = train_by_command(tmp_path, *words, "trainer.max_iterations=60", "resume=auto")
    assert again.code == 0
    assert read_rows(folder / "metrics.jsonl")[-1]["iteration"] == rows[-1]["iteration"]


def run_rank(what: str) -> tuple[int, str]:
    process = Process(["-m", "tests.callbacks.single_rank", what], merge=True)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sleep", "regex"])
def test_a_hanging_rank_ends_with_its_stacks(what: str) -> None:
    status, output = run_rank(what)
    assert status == 1
    assert "Timeout (0:00:01.500000)!" in output
    assert "single_rank.py" in output
    assert "finished" not in output


@pytest.mark.slow
def test_a_rank_that_works_goes_on() -> None:
    """Also after the end of training, when nothing restarts the timer."""
    status, output = run_rank("work")
    assert (status, output.strip()) == (0, "finished")
