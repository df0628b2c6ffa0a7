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


def learner(iteration: int = 2, **changes: Any) -> Any:
    values = {
        "name": "dapo",
        "iteration": iteration,
        "max_iterations": 2,
        "optimizer_steps": 2,
        "response_tokens": 7,
        "export": Path.mkdir,
        "device": torch.device("cpu"),
        "stopped_by": None,
    }
    return SimpleNamespace(**{**values, **changes})


def trainer(*callbacks: Any) -> Any:
    return SimpleNamespace(is_global_zero=True, callbacks=[*callbacks, object()])


def validate(summary: Summary, **values: float) -> Summary:
    metrics = {f"val/{name}": value for name, value in values.items()}
    summary.on_validation_metrics(trainer(), learner(), metrics, [])
    return summary


def written(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    return Summary(RunDir(tmp_path), "dapo", {"ratio": "symmetric"})


@pytest.mark.parametrize(("values", "best"), [([0.1, 0.4, 0.3], 0.4), ([-0.5, -0.2, -0.3], -0.2)])
def test_first_best_and_last(
    summary: Summary, tmp_path: Path, values: list[float], best: float
) -> None:
    for value in values:
        validate(summary, accuracy=value)
    summary.on_train_end(trainer(), learner())
    content = written(tmp_path)
    assert content["val/accuracy"] == {"first": values[0], "best": best, "last": values[-1]}
    assert content["exit"] == "finished"
    assert content["peak_memory_mb"] > 100, "at the end, with the last checkpoint"
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
    assert (tmp_path / "export/README.md").is_file()


def test_dropped_prompts_are_counted(tmp_path: Path) -> None:
    summary = Summary(RunDir(tmp_path), "dapo", {}, dropped_prompts=3)
    summary.on_train_end(trainer(), learner(1))
    assert written(tmp_path)["dropped_prompts"] == 3


def test_warnings_of_the_monitor(
    summary: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = Monitor()
    monitor.fired = {"collapse": "iteration 4: val/accuracy has collapsed"}
    summary.on_train_end(trainer(monitor), learner())
    assert written(tmp_path)["warnings"] == ["iteration 4: val/accuracy has collapsed"]
    assert capsys.readouterr().err == "warning: iteration 4: val/accuracy has collapsed\n"


def test_interrupted_and_failed(summary: Summary, tmp_path: Path) -> None:
    stop = GracefulStop()
    stop.signal = 15
    summary.on_train_end(trainer(stop), learner(1))
    assert written(tmp_path)["exit"] == "interrupted"
    summary.on_exception(trainer(), learner(1), OSError("disk\nfull"))
    assert written(tmp_path)["exit"] == "failed: OSError: disk full"


def test_a_run_that_goes_on_is_not_finished(summary: Summary, tmp_path: Path) -> None:
    summary.on_train_end(trainer(), learner())
    before = written(tmp_path)
    assert before["exit"] == "finished"
    summary.on_fit_start(trainer(), learner())
    assert written(tmp_path) == {**before, "exit": "not finished"}


def test_state_is_restored(summary: Summary, tmp_path: Path) -> None:
    state = validate(summary, accuracy=0.9).state_dict()
    after = Summary(RunDir(tmp_path), "dapo", {})
    after.load_state_dict(state)
    validate(after, accuracy=0.5)
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
    run = RunDir(tmp_path)
    clock = Clock()
    monkeypatch.setattr("rlmods.callbacks.summary.time", clock)
    monkeypatch.setattr("rlmods.logger.jsonl.time", clock)

    class Ticking(L.Callback):
        on_iteration_end = clock.on_iteration_end

    def train(iterations: int, resume: Path | None) -> tuple[list[float], float]:
        log = JsonlLogger(run.metrics, -1 if resume is None else 2)
        checkpoint = IterationCheckpoint(run.checkpoints, every=1)
        fit = trainers.build(
            max_iterations=iterations,
            callbacks=(Ticking(), Summary(run, "dapo", {}), checkpoint),
            loggers=[log],
            accelerator="cpu",
            devices=1,
        ).fit
        trained = tiny_setup.learner()
        data = PromptModule(tiny_setup.SPLITS, trained.batch.prompts)
        fit(trained, datamodule=data, ckpt_path=resume, weights_only=True)
        clock.now += 500.0  # between the two processes
        rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
        return [row["wall_s"] for row in rows], written(tmp_path)["wall_s"]

    assert train(2, None) == ([0.0, 10.0], 20.0)
    resume = run.checkpoints / "iteration_000002.ckpt"
    assert train(4, resume) == ([0.0, 10.0, 10.0, 20.0], 40.0)


@pytest.mark.parametrize(
    ("optimizer_steps", "line"),
    [
        (2, "dapo: 2 iterations; val/pair_accuracy 0.710; the model is in"),
        (0, "no optimizer step (no learning signal)"),
    ],
)
def test_last_line_on_the_terminal(
    optimizer_steps: int, line: str, summary: Summary, capsys: pytest.CaptureFixture[str]
) -> None:
    validate(summary, pair_accuracy=0.71, loss=0.6)
    summary.on_train_end(trainer(), learner(optimizer_steps=optimizer_steps))
    assert line in capsys.readouterr().out


class TestFullDisk:
    """Errors are one line."""

    def test_export(self, summary: Summary) -> None:
        def export(folder: Path) -> None:
            raise SafetensorError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )

        message = r"export: cannot write there \(.+\): make room, or choose another run_dir="
        with pytest.raises(UserError, match=message) as error:
            summary.on_train_end(trainer(), learner(export=export))
        assert "\n" not in str(error.value)

    def test_does_not_hide_the_first_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        summary = Summary(RunDir(tmp_path / "file"), "dapo", {})
        with pytest.warns(UserWarning, match=r"summary.json: cannot write there \(File exists\)"):
            summary.on_exception(trainer(), learner(1), ValueError("first"))


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
    assert "Trained with rlmods for 1 iteration (`dapo`), seed 1." in model_card(SavedRun(path), 1)
    (path / "config.yaml").unlink()  # as of a run that was started from Python
    assert "Trained with rlmods for 1 iteration (`first`), seed None." in model_card(
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
