"""Summary of a run."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from safetensors import SafetensorError

from rlmods.callbacks import GracefulStop, IterationCheckpoint, Monitor, Summary
from rlmods.callbacks.summary import model_card
from rlmods.data import PromptModule
from rlmods.distributed import trainer as trainers
from rlmods.errors import UserError
from rlmods.logger import JsonlLogger
from rlmods.run.directory import RunDir
from rlmods.run.saved import SavedRun
from tests.support import tiny_setup
from tests.support.saved_runs import write_run


def learner(iteration: int = 2) -> Any:
    export = lambda folder: folder.mkdir()  # noqa: E731
    counts = {
        "iteration": iteration,
        "max_iterations": 2,
        "optimizer_steps": 2,
        "response_tokens": 7,
    }
    return SimpleNamespace(
        name="dapo", **counts, export=export, device=torch.device("cpu"), stopped_by=None
    )


def write(tmp_path: Path, values: list[float], end: Any) -> dict[str, Any]:
    tmp_path.mkdir(exist_ok=True)
    summary = Summary(RunDir(tmp_path), "dapo", {"ratio": "symmetric"})
    for value in values:
        summary.on_validation_metrics(TRAINER, None, {"val/accuracy": value}, [])
    end(summary)
    summary_json: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
    return summary_json


TRAINER: Any = SimpleNamespace(is_global_zero=True, callbacks=[])


@pytest.mark.parametrize(("values", "best"), [([0.1, 0.4, 0.3], 0.4), ([-0.5, -0.2, -0.3], -0.2)])
def test_first_best_and_last(tmp_path: Path, values: list[float], best: float) -> None:
    content = write(tmp_path, values, lambda s: s.on_train_end(TRAINER, learner()))
    assert content["val/accuracy"] == {"first": values[0], "best": best, "last": values[-1]}
    assert content["exit"] == "finished"
    assert list(content) == [
        "label",
        "algo",
        "parts",
        "iterations",
        "val/accuracy",
        "wall_s",
        "response_tokens",
        "peak_memory_mb",
        "exit",
    ]
    assert (tmp_path / "export").is_dir()


def test_dropped_prompts_are_counted(tmp_path: Path) -> None:
    assert "dropped_prompts" not in write(
        tmp_path, [], lambda s: s.on_train_end(TRAINER, learner(1))
    )
    (tmp_path / "other").mkdir()
    summary = Summary(RunDir(tmp_path / "other"), "dapo", {}, dropped_prompts=3)
    summary.on_train_end(TRAINER, learner(1))
    assert json.loads((tmp_path / "other" / "summary.json").read_text())["dropped_prompts"] == 3


def test_warnings_of_the_monitor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor()
    monitor.fired = {"collapse": "iteration 4: val/accuracy has collapsed"}
    trainer: Any = SimpleNamespace(is_global_zero=True, callbacks=[monitor, object()])
    content = write(tmp_path, [], lambda s: s.on_train_end(trainer, learner()))
    assert content["warnings"] == ["iteration 4: val/accuracy has collapsed"]
    assert capsys.readouterr().err == "warning: iteration 4: val/accuracy has collapsed\n"
    monitor.fired.clear()
    assert "warnings" not in write(
        tmp_path / "other", [], lambda s: s.on_train_end(trainer, learner())
    )


def test_peak_memory_includes_the_last_checkpoint(tmp_path: Path) -> None:
    content = write(
        tmp_path,
        [],
        lambda s: (
            s.on_iteration_end(TRAINER, None, {"perf/peak_memory_mb": 1.0}),
            s.on_train_end(TRAINER, learner()),
        ),
    )
    assert content["peak_memory_mb"] > 100


def test_interrupted_and_failed(tmp_path: Path) -> None:
    stop = GracefulStop()
    stop.signal = 15
    interrupted: Any = SimpleNamespace(is_global_zero=True, callbacks=[stop])
    assert (
        write(tmp_path, [], lambda s: s.on_train_end(interrupted, learner(1)))["exit"]
        == "interrupted"
    )
    failed = write(
        tmp_path, [], lambda s: s.on_exception(TRAINER, learner(1), OSError("disk\nfull"))
    )
    assert failed["exit"] == "failed: OSError: disk full"


def test_state_is_restored(tmp_path: Path) -> None:
    before, after = (Summary(RunDir(tmp_path), "dapo", {}) for _ in range(2))
    before.on_validation_metrics(TRAINER, None, {"val/accuracy": 0.9}, [])
    after.load_state_dict(before.state_dict())
    after.on_validation_metrics(TRAINER, None, {"val/accuracy": 0.5}, [])
    assert after.accuracy == {"first": 0.9, "best": 0.9, "last": 0.5}


class Clock:
    """Time that passes by 10 s in an iteration."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def on_iteration_end(self, *args: Any) -> None:
        self.now += 10.0


def test_wall_time_goes_on_after_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock = RunDir(tmp_path), Clock()
    monkeypatch.setattr("rlmods.callbacks.summary.time", clock)
    monkeypatch.setattr("rlmods.logger.jsonl.time", clock)

    class Ticking(L.Callback):
        on_iteration_end = clock.on_iteration_end

    def train(iterations: int, resume: Path | None) -> list[dict[str, Any]]:
        log = JsonlLogger(run.metrics, -1 if resume is None else 2)
        callbacks = (
            Ticking(),
            Summary(run, "dapo", {}),
            IterationCheckpoint(run.checkpoints, every=1),
        )
        fit_with(tiny_setup.learner(), iterations, callbacks, log, resume)
        clock.now += 500.0  # between the two processes
        return [json.loads(line) for line in run.metrics.read_text().splitlines()]

    assert [row["wall_s"] for row in train(2, None)] == [0.0, 10.0]
    assert json.loads(run.summary.read_text())["wall_s"] == 20.0
    assert [row["wall_s"] for row in train(4, run.checkpoints / "iteration_000002.ckpt")] == [
        0.0,
        10.0,
        10.0,
        20.0,
    ]
    assert json.loads(run.summary.read_text())["wall_s"] == 40.0


def fit_with(
    learner: Any, iterations: int, callbacks: tuple[L.Callback, ...], log: Any, resume: Path | None
) -> None:
    trainer = trainers.build(
        max_iterations=iterations, callbacks=callbacks, loggers=[log], accelerator="cpu", devices=1
    )
    trainer.fit(
        learner,
        datamodule=PromptModule(tiny_setup.SPLITS, learner.batch.prompts),
        ckpt_path=resume,
        weights_only=True,
    )


def test_last_line_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(RunDir(tmp_path), "reward_model", {})
    summary.on_validation_metrics(TRAINER, None, {"val/pair_accuracy": 0.71, "val/loss": 0.6}, [])
    summary.on_train_end(TRAINER, learner())
    assert (
        "reward_model: 2 iterations; val/pair_accuracy 0.710; the model is in"
        in capsys.readouterr().out
    )
    stuck = learner()
    stuck.optimizer_steps = 0
    summary.directory = RunDir(tmp_path / "again")
    summary.directory.path.mkdir()
    summary.on_train_end(TRAINER, stuck)
    assert "no optimizer step (no learning signal)" in capsys.readouterr().out


class TestFullDisk:
    """Errors are one line."""

    def test_export(self, tmp_path: Path) -> None:
        def export(folder: Path) -> None:
            raise SafetensorError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )

        full = learner()
        full.export = export
        with pytest.raises(
            UserError,
            match=r"export: cannot write there \(.+\): make room, or choose another run_dir=",
        ) as error:
            Summary(RunDir(tmp_path), "dapo", {}).on_train_end(TRAINER, full)
        assert "\n" not in str(error.value)

    def test_does_not_hide_the_first_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.warns(UserWarning, match=r"summary.json: cannot write there \(File exists\)"):
            Summary(RunDir(tmp_path / "file"), "dapo", {}).on_exception(
                TRAINER, learner(1), ValueError("first")
            )


def card(folder: Path, **options: object) -> str:
    path = write_run(
        folder / "first",
        [0.25, None, 0.5, 0.75],
        overrides=["algo=dapo", "data.template=a b"],
        **options,
    )  # type: ignore[arg-type]
    (path / "versions.txt").write_text("command python train.py\ntorch 2.13\nprocessor mine\n")
    return model_card(SavedRun(path))


def test_card_says_what_was_trained_how_and_with_which_result(tmp_path: Path) -> None:
    text = card(tmp_path)
    assert "# first: dapo\n" in text
    assert "| ratio | `clip_higher` |" in text
    assert "| val/accuracy | 0.750 |" in text
    assert "python train.py algo=dapo 'data.template=a b'\n" in text
    assert "- torch 2.13" in text
    assert "processor" not in text


def test_card_of_a_checkpoint_of_a_run_that_goes_on(tmp_path: Path) -> None:
    path = write_run(tmp_path / "first", [0.25, 0.5])
    (path / "summary.json").unlink()
    assert "Trained with rlmods for 1 iterations (`dapo`), seed 1." in model_card(SavedRun(path), 1)
    (path / "config.yaml").unlink()  # as of a run that was started from Python
    assert "Trained with rlmods for 1 iterations (`first`), seed None." in model_card(
        SavedRun(path), 1
    )


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("org/model-1.5", "org/model-1.5"),
        ("/home/me/model", None),
        ("a/b\nlicense: x", None),
        (None, None),
    ],
)
def test_card_front_matter_names_models_of_the_hub_only(
    name: str | None, base: str | None, tmp_path: Path
) -> None:
    text = card(tmp_path, settings={"policy": {"name": name}})
    front = yaml.safe_load(text.split("---\n")[1])
    assert front.get("base_model") == base
    assert set(front) <= {"library_name", "tags", "base_model"}
