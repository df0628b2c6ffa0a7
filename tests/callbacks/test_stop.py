"""Signals: the run ends after the iteration, or within it where there is no time."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.plugins.environments import SLURMEnvironment

from rlmods.callbacks import GracefulStop, IterationCheckpoint
from rlmods.callbacks.stop import EX_TEMPFAIL, DeadlineError
from rlmods.training.evaluation import Validation
from rlmods.types import UserError
from tests.callbacks.stubs import Tiny, fit
from tests.support.tiny_setup import SPLITS, learner
from tests.support.tiny_setup import fit as train

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _handlers_are_given_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in HEARD]
    yield
    assert [signal.getsignal(number) for number in HEARD] == before


class Sends(L.Callback):
    """Signals within iteration `when`."""

    def __init__(self, when: int, *numbers: int) -> None:
        self.when, self.numbers = when, numbers

    def on_train_batch_start(self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int) -> None:
        if learner.iteration + 1 == self.when:
            numbers, self.numbers = self.numbers, ()
            for number in numbers:
                os.kill(os.getpid(), number)


class SendsWhileItValidates(Sends):
    def on_train_batch_start(self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int) -> None:
        pass

    def on_validation_metrics(self, trainer: L.Trainer, learner: Any, metrics: Any, rows: Any) -> None:
        if learner.iteration == self.when and self.numbers:
            os.kill(os.getpid(), self.numbers[0])


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
def test_the_iteration_ends_and_is_saved(tmp_path: Path, numbers: tuple[int, ...], status: int, capfd: pytest.CaptureFixture[str]) -> None:
    stop = GracefulStop()
    made = fit(Tiny(batches=2), 9, [IterationCheckpoint(tmp_path), stop, Sends(3, *numbers)])
    assert (made.iteration, stop.exit_status, stop.gave_up) == (3, status, False)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration_000003.ckpt"]
    assert "stopping after iteration 3" in capfd.readouterr().err


def test_without_a_signal_nothing_happens(tmp_path: Path) -> None:
    stop = GracefulStop(grace_s=0)
    assert fit(Tiny(), 4, [stop]).iteration == 4
    assert (stop.signal, stop.exit_status) == (None, 1)


class TestDeadline:
    def test_an_iteration_that_would_not_end_is_given_up_at_once(self, tmp_path: Path) -> None:
        """Judging by the latest: it does not wait for the deadline."""
        stop, started = GracefulStop(grace_s=30), time.monotonic()
        sends = Sends(3, signal.SIGUSR1)
        sends.on_train_start = lambda *_: stop._took.append(60.0)  # type: ignore[method-assign]
        made = learner()
        with pytest.raises(DeadlineError, match="iteration 3 would not have ended within 30 s"):
            train(made, 9, callbacks=(IterationCheckpoint(tmp_path, every=1), stop, sends))
        assert (made.iteration, stop.exit_status, stop.gave_up) == (2, EX_TEMPFAIL, True)
        assert time.monotonic() - started < 30
        assert "iteration_000002.ckpt" in {path.name for path in tmp_path.iterdir()}

    @pytest.mark.parametrize("where", ["sampling", "reward", "microbatches"])
    def test_one_that_turns_out_longer_is_given_up_when_it_passes(self, where: str) -> None:
        class Slow(L.Callback):
            def on_train_start(self, trainer: L.Trainer, learner: Any) -> None:
                if where == "sampling":
                    learner.rollout.on_tokens = lambda *_: time.sleep(0.5)

        def reward(responses: Any) -> list[float]:
            if where == "reward":
                time.sleep(0.5)
            return [float(r.tokens[0] % 2) for r in responses]

        made, stop = learner(reward=reward), GracefulStop(grace_s=0.3)
        if where == "microbatches":
            made.optimize = lambda rows, plan: (time.sleep(0.5), list(made.microbatches(rows)))
        with pytest.raises(DeadlineError):
            train(made, 3, callbacks=(Slow(), stop, Sends(1, signal.SIGTERM)))
        assert made.iteration == 0

    @pytest.mark.parametrize("grace_s", [60.0, None])
    def test_where_there_is_time_it_ends(self, grace_s: float | None) -> None:
        stop = GracefulStop(grace_s)
        made = learner(reward=lambda responses: time.sleep(0.2) or [float(r.tokens[0] % 2) for r in responses])
        train(made, 3, callbacks=(stop, Sends(1, signal.SIGTERM)))
        assert (made.iteration, stop.exit_status) == (1, 75)

    def test_out_of_range(self) -> None:
        with pytest.raises(UserError, match=r"callbacks.stop.grace_s=-1: must be null, 0 or more"):
            GracefulStop(-1)


def test_a_signal_while_it_validates_is_heard_before_the_next_iteration() -> None:
    made = learner(validation=Validation(every=1), validation_prompts=list(SPLITS.val))
    train(made, 9, callbacks=(GracefulStop(), SendsWhileItValidates(2, signal.SIGTERM)))
    assert made.iteration == 2


def test_a_rank_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another rank has heard comes with the reduction."""
    stop = GracefulStop()

    class Other(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int) -> None:
            if learner.iteration == 1:
                monkeypatch.setattr(trainer.strategy, "reduce", lambda x, reduce_op: x + signal.SIGTERM)

    assert fit(Tiny(), 9, [stop, Other()]).iteration == 2
    assert stop.exit_status == EX_TEMPFAIL


def test_lightning_does_not_requeue_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SLURMEnvironment()
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    monkeypatch.setattr(trainer.strategy, "cluster_environment", environment, raising=False)
    GracefulStop().setup(trainer, None, "fit")
    assert not environment.auto_requeue


def test_ctrl_c_before_training_listens_is_one_too() -> None:
    early, late = GracefulStop(), GracefulStop()
    assert early.come_early()
    assert early.exit_status == 130
    late.hear(signal.SIGINT)
    assert not late.come_early(), "the second one stops at once"


def test_a_rank_goes_with_one_that_gave_up_if_it_was_asked_too() -> None:
    stop = GracefulStop()
    assert not stop.follow("rank 1 died")
    stop.hear(signal.SIGUSR1)
    assert stop.follow("rank 1 died")
    assert (stop.gave_up, stop.exit_status) == (True, 75)
    other = GracefulStop()
    assert other.follow("rank 1 failed in stage update: DeadlineError: no time")
    assert other.exit_status == 75
