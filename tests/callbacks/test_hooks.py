"""Callbacks of Lightning that monitor a metric, and runs that a callback ends."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from rlmods.algo import Batch
from rlmods.callbacks import GracefulStop, IterationCheckpoint, Summary
from rlmods.run.checkpoints import read_iteration
from rlmods.run.directory import RunDir
from rlmods.training.evaluation import Validation
from rlmods.types import Response, Scores
from tests.support.tiny_setup import SPLITS, fit, learner

FILTERS = ["ignore:.*ModelCheckpoint.*", "ignore:.*Checkpoint directory.*"]
pytestmark = [pytest.mark.filterwarnings(text) for text in FILTERS]


class Scripted:
    """Reward whose accuracy on held-out prompts, which it gets one response each, follows a
    list."""

    def __init__(self, accuracies: Sequence[float]) -> None:
        self.accuracies = iter(accuracies)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        correct = [bool(r.tokens[0] % 2) for r in responses]
        if len(responses) == len(SPLITS.val):
            accuracy = next(self.accuracies)
            correct = [i < accuracy * len(responses) for i in range(len(responses))]
        return Scores([float(x) for x in correct], correct=correct)


def train(
    accuracies: Sequence[float], iterations: int, *callbacks: L.Callback, **options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    trained = learner(
        reward=Scripted(accuracies),
        validation=Validation(every=1),
        validation_prompts=list(SPLITS.val),
        batch=Batch(4, 4),
    )
    return trained, fit(trained, iterations, callbacks=callbacks, **options)


def test_callback_metrics_are_those_of_the_log() -> None:
    class Look(L.Callback):
        seen: dict[str, torch.Tensor]

        def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.seen = dict(trainer.callback_metrics)

    look = Look()
    _, rows = train([0.0, 0.25, 0.5], 2, look)
    logged = {name: value for row in rows for name, value in row.items() if "/" in name}
    assert logged["val/accuracy"] == 0.5
    assert {name: float(value) for name, value in look.seen.items()} == pytest.approx(logged)


class TestEarlyStopping:
    ACCURACIES = (0.875, 0.25, 0.5, 0.5, 0.25, 0.75)
    """Before the first iteration, which does not count, and after each."""

    def test_ends_the_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        stopping = EarlyStopping("val/accuracy", patience=2, mode="max")
        run = RunDir(tmp_path)
        trained, rows = train(
            self.ACCURACIES,
            9,
            stopping,
            GracefulStop(),
            IterationCheckpoint(run.checkpoints),
            Summary(run, "dapo", {}),
        )
        assert trained.iteration == 4
        assert [row["val/accuracy"] for row in rows if "val/accuracy" in row] == list(
            self.ACCURACIES[:5]
        )
        summary = json.loads(run.summary.read_text())
        assert (summary["exit"], summary["iterations"]) == ("finished", 4)
        assert (run.export / "model.safetensors").is_file()
        assert read_iteration(run.checkpoints / "iteration_000004.ckpt") == 4
        out = capsys.readouterr().out
        assert (
            "dapo: 4 of 9 iterations, ended by EarlyStopping: Monitored metric val/accuracy "
            "did not improve in the last 2" in out
        )

    def test_resumes_with_its_patience(self, tmp_path: Path) -> None:
        train(
            self.ACCURACIES,
            3,
            EarlyStopping("val/accuracy", patience=2, mode="max"),
            IterationCheckpoint(tmp_path),
        )
        stopping = EarlyStopping("val/accuracy", patience=2, mode="max")
        trained, _ = train(
            self.ACCURACIES[4:], 9, stopping, resume=tmp_path / "iteration_000003.ckpt"
        )
        assert trained.iteration == 4


@pytest.mark.slow
def test_model_checkpoint_keeps_the_best(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, "best", monitor="val/accuracy", mode="max")
    trained, _ = train(
        [0.0, 0.25, 0.75, 0.5, 0.25], 4, best, IterationCheckpoint(tmp_path / "checkpoints")
    )
    assert trained.iteration == 4
    assert float(best.best_model_score or 0.0) == 0.75
    assert read_iteration(tmp_path / "best.ckpt") == 2
    resumed, rows = train([0.1, 0.1], 4, resume=tmp_path / "best.ckpt")
    assert [row["iteration"] for row in rows if "train/reward" in row] == [3, 4]
    assert resumed.optimizer_steps == 4
