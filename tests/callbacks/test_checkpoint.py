import errno
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning import Callback, Trainer
from torch.distributed.checkpoint.api import CheckpointException

from rlmods.callbacks import IterationCheckpoint, checkpoint
from rlmods.errors import UserError
from rlmods.run.checkpoints import find_resume, read_iteration
from rlmods.types import Prompt
from tests.callbacks.stubs import Tiny, fit, notify, trainer
from tests.faults.inject import DiskFull
from tests.support.tiny_setup import Log


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("iterations", "every", "keep", "kept"),
    [(6, 2, 2, [4, 6]), (5, 2, 2, [4, 5]), (5, 2, 0, [2, 4, 5]), (5, 0, 2, [5]), (3, 1, 1, [3])],
)
def test_saves_every_n_iterations_and_the_last(
    tmp_path: Path, iterations: int, every: int, keep: int, kept: list[int]
) -> None:
    fit(Tiny(batches=2), iterations, [IterationCheckpoint(tmp_path, every, keep)])
    assert names(tmp_path) == [f"iteration_{i:06d}.ckpt" for i in kept]
    assert [read_iteration(path) for path in sorted(tmp_path.iterdir())] == kept


def test_saves_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr("rlmods.callbacks.checkpoint.time.monotonic", lambda: next(clock))
    fit(Tiny(batches=2), 9, [IterationCheckpoint(tmp_path / "a", every=100, keep=0, every_s=100.0)])
    saved = [int(name[10:16]) for name in names(tmp_path / "a")]
    assert len(saved) > 1
    assert saved[-1] == 9
    fit(Tiny(batches=2), 9, [IterationCheckpoint(tmp_path / "b", every=100, keep=0, every_s=None)])
    assert names(tmp_path / "b") == ["iteration_000009.ckpt"]


def test_a_slow_checkpoint_by_time_is_rarer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving takes at most a twentieth of the run. An iteration takes two seconds."""
    now = [0.0]
    write = checkpoint._write

    def slow(*args: Any) -> str | None:
        now[0] += 0.5
        return write(*args)

    class Second(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            now[0] += 1.0

    monkeypatch.setattr(checkpoint, "_write", slow)
    monkeypatch.setattr("rlmods.callbacks.checkpoint.time.monotonic", lambda: now[0])
    made = IterationCheckpoint(tmp_path, every=100, keep=0, every_s=2.0)
    fit(Tiny(batches=2), 26, [Second(), made])
    assert names(tmp_path) == [f"iteration_{i:06d}.ckpt" for i in (1, 6, 11, 16, 21, 26)]


@pytest.mark.parametrize("stop", [3, 7, 8])  # within an epoch, at its end, in the next
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, stop: int) -> None:
    straight = fit(Tiny(), 10, [IterationCheckpoint(tmp_path / "a", every=100)])
    fit(Tiny(), stop, [IterationCheckpoint(tmp_path / "b/checkpoints", every=100)])
    checkpoint = find_resume(tmp_path / "b", "auto")
    resumed = fit(
        Tiny(), 10, [IterationCheckpoint(tmp_path / "b/checkpoints", every=100)], resume=checkpoint
    )
    assert resumed.iteration == 10
    assert resumed.seen == straight.seen
    assert torch.equal(resumed.weight, straight.weight)


def test_iterations_without_a_checkpoint_collect_no_state(tmp_path: Path) -> None:
    """The state of a run may grow with its age, so the work of an iteration must not depend on
    it."""

    class Counting(Tiny):
        collected: ClassVar[list[int]] = []

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.collected.append(self.iteration)
            super().on_save_checkpoint(checkpoint)

    trained = fit(Counting(), 9, [IterationCheckpoint(tmp_path, every=4)])
    assert trained.collected == [4, 8, 9]


class TestFullDisk:
    def test_warns_and_tries_again_after_the_next_iteration(self, tmp_path: Path) -> None:
        log = Log()
        checkpoint = IterationCheckpoint(tmp_path, every=2, keep=0)
        with pytest.warns(UserWarning, match="was not saved") as warned:
            fit(Tiny(), 9, [checkpoint, DiskFull([4, 5])], [log])
        reason = (
            "was not saved (No space left on device): training continues, the newest checkpoint "
            "is of iteration 2"
        )
        assert [str(w.message) for w in warned] == [f"iteration {i} {reason}" for i in (4, 5)]
        assert names(tmp_path) == [f"iteration_{i:06d}.ckpt" for i in (2, 6, 8, 9)]
        assert [
            (row["iteration"], row["checkpoint/failures"])
            for row in log.rows
            if "checkpoint/failures" in row
        ] == [(4, 1), (5, 2)]

    def test_removes_the_folder_of_a_sharded_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def write_half(self: Trainer, path: Path, *args: Any, **options: Any) -> None:
            path.mkdir(parents=True)
            (path / "__0_0.distcp").write_bytes(b"half")
            if self.lightning_module.iteration == 1:
                raise CheckpointException(
                    "save", {0: (OSError(errno.ENOSPC, "No space left on device"), None)}
                )  # type: ignore[dict-item]
            torch.save(
                {"iteration": self.lightning_module.iteration, "loops": {}}, path / "meta.pt"
            )

        monkeypatch.setattr(Trainer, "save_checkpoint", write_half)
        with pytest.warns(
            UserWarning,
            match=r"No space left on device\): training continues, there is no checkpoint",
        ):
            fit(Tiny(), 2, [IterationCheckpoint(tmp_path, every=1)])
        assert names(tmp_path) == ["iteration_000002.ckpt"]


def test_damaged_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    fit(Tiny(), 2, [IterationCheckpoint(tmp_path, every=2)])
    (tmp_path / "iteration_000003.ckpt").write_bytes(b"PK half")
    resumed = IterationCheckpoint(tmp_path, every=2, keep=2)
    fit(Tiny(), 4, [resumed], resume=tmp_path / "iteration_000002.ckpt")
    assert names(tmp_path) == [f"iteration_{i:06d}.ckpt" for i in (2, 3, 4)]


def test_incomplete_checkpoints_and_exports_are_ignored_and_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    fit(Tiny(), 2, [IterationCheckpoint(folder, every=2)])
    (folder / ".iteration_000003.ckpt.tmp").write_bytes(b"PK half")
    for name in (".iteration_000001.ckpt.old.tmp", ".iteration_000001_export.tmp"):
        (folder / name).mkdir()
    for name in (".export_best.tmp", ".export_best.old.tmp"):
        (tmp_path / name).mkdir()
    newest = find_resume(tmp_path, "auto")
    assert newest == folder / "iteration_000002.ckpt"
    fit(Tiny(), 4, [IterationCheckpoint(folder)], resume=newest)
    assert names(folder) == ["iteration_000002.ckpt", "iteration_000004.ckpt"]
    assert names(tmp_path) == ["checkpoints"]


class Validating(Tiny):
    """Validate at the end of every iteration, before the batch ends, as the learner does."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = values

    def training_step(self, batch: list[Prompt], batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        notify(
            self.trainer,
            "on_validation_metrics",
            self,
            {"val/accuracy": self.values[self.iteration - 1]},
            [],
        )


class TestRetention:
    def test_keep_every_keeps_permanently(self, tmp_path: Path) -> None:
        fit(Tiny(), 7, [IterationCheckpoint(tmp_path, every=2, keep=1, keep_every=3)])
        assert names(tmp_path) == [f"iteration_{i:06d}.ckpt" for i in (3, 6, 7)]

    @pytest.mark.parametrize(
        ("values", "mode", "best"),
        [
            ([0.1, 0.5, 0.3, 0.5, 0.2], "max", 2),
            ([3, 1, 2, 1, 9], "min", 2),
            ([0.2, math.nan, 0.1, 0.1, 0.1], "max", 1),
        ],
    )
    def test_keeps_the_best_and_the_first_of_equal_ones(
        self, tmp_path: Path, values: list[float], mode: str, best: int
    ) -> None:
        fit(
            Validating(values),
            5,
            [IterationCheckpoint(tmp_path, every=0, keep=1, best="val/accuracy", best_mode=mode)],
        )
        assert names(tmp_path) == [
            "best.json",
            f"iteration_{best:06d}.ckpt",
            "iteration_000005.ckpt",
        ]
        best_json = json.loads((tmp_path / "best.json").read_text())
        assert (best_json["checkpoint"], best_json["value"]) == (
            f"iteration_{best:06d}.ckpt",
            values[best - 1],
        )

    BEST: ClassVar[dict[str, Any]] = {"every": 1, "keep": 1, "best": "val/accuracy"}

    def best(self, folder: Path) -> str:
        name: str = json.loads((folder / "best.json").read_text())["checkpoint"]
        return name

    def test_resumed_run_keeps_the_best(self, tmp_path: Path) -> None:
        values = [0.1, 0.9, 0.2, 0.8, 0.3]
        fit(Validating(values), 3, [IterationCheckpoint(tmp_path, **self.BEST)])
        resume = tmp_path / "iteration_000003.ckpt"
        fit(Validating(values), 5, [IterationCheckpoint(tmp_path, **self.BEST)], resume=resume)
        assert names(tmp_path) == ["best.json", "iteration_000002.ckpt", "iteration_000005.ckpt"]
        assert self.best(tmp_path) == "iteration_000002.ckpt"

    @pytest.mark.parametrize("change", ["later", "fork", "metric"])
    def test_best_of_another_history_or_metric_is_dropped(
        self, change: str, tmp_path: Path
    ) -> None:
        options = {**self.BEST, "keep": 0}
        fit(Validating([0.7, 0.2, 0.9]), 3, [IterationCheckpoint(tmp_path / "a", **options)])
        folder = tmp_path / ("b" if change == "fork" else "a")
        mode = "min" if change == "metric" else "max"
        checkpoint = IterationCheckpoint(folder, **options, best_mode=mode)
        resume = tmp_path / "a/iteration_000002.ckpt"
        fit(Validating([0.7, 0.2, 0.3, 0.1]), 4, [checkpoint], resume=resume)
        best = {"later": 1, "fork": 3, "metric": 4}[change]
        assert self.best(folder) == f"iteration_{best:06d}.ckpt"

    def test_a_best_that_cannot_be_saved_replaces_none(self, tmp_path: Path) -> None:
        callbacks = [IterationCheckpoint(tmp_path, **self.BEST), DiskFull([3])]
        with pytest.warns(UserWarning, match="iteration 3 was not saved"):
            fit(Validating([0.1, 0.5, 0.9, 0.2]), 4, callbacks)
        assert names(tmp_path) == ["best.json", "iteration_000002.ckpt", "iteration_000004.ckpt"]

    def test_unknown_metric_is_an_error_before_the_first_iteration(self, tmp_path: Path) -> None:
        checkpoint = IterationCheckpoint(tmp_path, best="val/acuracy")
        with pytest.raises(
            UserError,
            match=r"callbacks.checkpoint.best=val/acuracy: no such validation metric, use one of "
            r"val/accuracy",
        ):
            checkpoint.on_validation_metrics(trainer(), Tiny(), {"val/accuracy": 0.5}, [])


def test_a_run_that_ends_early_is_saved_before_it_is_exported(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Any) -> None:
            trainer.should_stop = learner.iteration == 2

    class Export(Callback):
        saved: list[str]

        def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
            self.saved = names(tmp_path)

    export = Export()
    fit(Tiny(), 5, [IterationCheckpoint(tmp_path, every=0), Stop(), export])
    assert export.saved == ["iteration_000002.ckpt"]


def test_resuming_a_finished_run_saves_nothing(tmp_path: Path) -> None:
    fit(Tiny(), 2, [IterationCheckpoint(tmp_path, every=1)])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    class Done(Tiny):
        def on_train_start(self) -> None:
            self.trainer.should_stop = True

    fit(
        Done(),
        2,
        [IterationCheckpoint(tmp_path, every=1)],
        resume=tmp_path / "iteration_000002.ckpt",
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_later_checkpoint_of_another_run_does_not_replace_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "iteration_000009.ckpt").touch()
    fit(Tiny(), 3, [IterationCheckpoint(tmp_path, every=1, keep=1)])
    assert names(tmp_path) == ["iteration_000003.ckpt", "iteration_000009.ckpt"]


def test_sharded_checkpoint_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sharded(self: Trainer, path: Path, *args: Any, **options: Any) -> None:
        path.mkdir(parents=True)
        torch.save({"iteration": self.lightning_module.iteration, "loops": {}}, path / "meta.pt")

    monkeypatch.setattr(Trainer, "save_checkpoint", sharded)
    monkeypatch.setattr("rlmods.run.checkpoints.read_metadata", lambda path: None)
    fit(Tiny(), 3, [IterationCheckpoint(tmp_path / "checkpoints", every=1, keep=2)])
    assert names(tmp_path / "checkpoints") == ["iteration_000002.ckpt", "iteration_000003.ckpt"]
    assert find_resume(tmp_path, "auto") == tmp_path / "checkpoints/iteration_000003.ckpt"
    # over an existing one
    fit(Tiny(), 3, [IterationCheckpoint(tmp_path / "checkpoints", every=1, keep=2)])


class Exporting(Validating):
    """Export the weight as text, as a learner writes a Hugging Face directory."""

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "weight").write_text(str(self.weight.item()))


class TestExport:
    VALUES = (0.1, 0.5, 0.3, 0.5, 0.2)

    def test_of_every_checkpoint_lives_as_long_as_it(self, tmp_path: Path) -> None:
        trained = fit(
            Exporting(list(self.VALUES)),
            5,
            [IterationCheckpoint(tmp_path / "checkpoints", every=1, keep=2, export="all")],
        )
        kept = [f"iteration_{i:06d}{kind}" for i in (4, 5) for kind in (".ckpt", "_export")]
        assert names(tmp_path / "checkpoints") == kept
        assert names(tmp_path) == ["checkpoints"]
        assert (
            float((tmp_path / "checkpoints/iteration_000005_export/weight").read_text())
            == trained.weight.item()
        )
        card = tmp_path / "checkpoints/iteration_000005_export/README.md"
        assert "for 5 iterations" in card.read_text()

    @pytest.mark.parametrize("export", ["best", "all"])
    def test_of_the_best(self, tmp_path: Path, export: str) -> None:
        options: dict[str, Any] = {"every": 0, "keep": 1, "best": "val/accuracy", "export": export}
        fit(
            Exporting(list(self.VALUES)),
            5,
            [IterationCheckpoint(tmp_path / "checkpoints", **options)],
        )
        state = torch.load(tmp_path / "checkpoints/iteration_000002.ckpt", weights_only=True)[
            "state_dict"
        ]
        assert float((tmp_path / "export_best/weight").read_text()) == float(state["weight"])
        exports = [f"iteration_{i:06d}_export" for i in (2, 5)] if export == "all" else []
        assert [
            name for name in names(tmp_path / "checkpoints") if name.endswith("export")
        ] == exports

    def test_a_resumed_run_replaces_it_by_a_better_one_only(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"every": 1, "keep": 0, "best": "val/accuracy", "export": "best"}
        fit(Exporting([0.1, 0.5]), 2, [IterationCheckpoint(tmp_path / "checkpoints", **options)])
        before = (tmp_path / "export_best/weight").read_text()
        for values in ([0.1, 0.5, 0.4], [0.1, 0.5, 0.9]):
            resume = tmp_path / "checkpoints/iteration_000002.ckpt"
            fit(
                Exporting(values),
                3,
                [IterationCheckpoint(tmp_path / "checkpoints", **options)],
                resume=resume,
            )
            assert ((tmp_path / "export_best/weight").read_text() == before) == (values[2] < 0.5)

    def test_warns_if_it_cannot_be_written(self, tmp_path: Path) -> None:
        class Full(Exporting):
            def export(self, folder: Path) -> None:
                super().export(folder)
                if self.iteration == 1:
                    raise OSError(errno.ENOSPC, "No space left on device")

        log = Log()
        with pytest.warns(
            UserWarning,
            match=r"iteration_000001_export was not written \(No space left on device\): training "
            r"continues",
        ):
            fit(
                Full([0.1, 0.2]),
                2,
                [IterationCheckpoint(tmp_path, every=1, keep=0, export="all")],
                [log],
            )
        assert names(tmp_path) == [
            "iteration_000001.ckpt",
            "iteration_000002.ckpt",
            "iteration_000002_export",
        ]
        assert [row["checkpoint/failures"] for row in log.rows if "checkpoint/failures" in row] == [
            1
        ]


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"export": "last"}, "export=last: must be null, all, or best with"),
        ({"export": "best"}, "best with callbacks.checkpoint.best=val/accuracy"),
    ],
)
def test_invalid_settings_are_rejected(invalid: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterationCheckpoint("x", **invalid)
