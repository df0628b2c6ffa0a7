from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from rlmods.callbacks import IterationCheckpoint
from rlmods.run import find_resume
from rlmods.run.resume import read_iteration
from tests.callbacks.stubs import Tiny, fit


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("iterations", "every", "keep", "kept"),
    [(6, 2, 2, [4, 6]), (5, 2, 2, [4, 5]), (5, 2, 0, [2, 4, 5]), (5, 0, 2, [5]), (3, 1, 1, [3])],
)
def test_every_so_many_iterations_and_the_last(tmp_path: Path, iterations: int, every: int, keep: int, kept: list[int]) -> None:
    fit(Tiny(batches=2), iterations, [IterationCheckpoint(tmp_path, every, keep)])
    assert names(tmp_path) == [f"iteration_{i:06d}.ckpt" for i in kept]
    assert [read_iteration(path) for path in sorted(tmp_path.iterdir())] == kept


@pytest.mark.parametrize("stop", [3, 7, 8])  # within an epoch, at its end, in the next
def test_a_resumed_run_is_the_same_run(tmp_path: Path, stop: int) -> None:
    straight = fit(Tiny(), 10, [IterationCheckpoint(tmp_path / "a", every=100)])
    fit(Tiny(), stop, [IterationCheckpoint(tmp_path / "b/checkpoints", every=100)])
    checkpoint = find_resume(tmp_path / "b", "auto")
    resumed = fit(Tiny(), 10, [IterationCheckpoint(tmp_path / "b/checkpoints", every=100)], resume=checkpoint)
    assert resumed.iteration == 10
    assert resumed.seen == straight.seen
    assert torch.equal(resumed.weight, straight.weight)


def test_a_crash_while_writing_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(Tiny(), 2, [IterationCheckpoint(tmp_path / "checkpoints", every=2)])

    def half(self: Trainer, path: Path, *args: Any, **options: Any) -> None:
        Path(path).write_bytes(b"PK half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_checkpoint", half)
        with pytest.raises(OSError, match="disk full"):
            fit(Tiny(), 4, [IterationCheckpoint(tmp_path / "checkpoints", every=3)], resume=find_resume(tmp_path, "auto"))
    assert names(tmp_path / "checkpoints") == [".iteration_000003.ckpt.tmp", "iteration_000002.ckpt"]
    newest = find_resume(tmp_path, "auto")
    assert newest is not None
    assert newest.name == "iteration_000002.ckpt"
    fit(Tiny(), 4, [IterationCheckpoint(tmp_path / "checkpoints")], resume=newest)
    assert names(tmp_path / "checkpoints") == ["iteration_000002.ckpt", "iteration_000004.ckpt"]


def test_resuming_a_finished_run_saves_nothing_new(tmp_path: Path) -> None:
    fit(Tiny(), 2, [IterationCheckpoint(tmp_path, every=1)])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    class Done(Tiny):
        def on_train_start(self) -> None:
            self.trainer.should_stop = True

    fit(Done(), 2, [IterationCheckpoint(tmp_path, every=1)], resume=tmp_path / "iteration_000002.ckpt")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_an_older_broken_one_ahead_does_not_cost_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "iteration_000009.ckpt").touch()
    fit(Tiny(), 3, [IterationCheckpoint(tmp_path, every=1, keep=1)])
    assert names(tmp_path) == ["iteration_000003.ckpt", "iteration_000009.ckpt"]


def test_a_sharded_checkpoint_moves_as_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sharded(self: Trainer, path: Path, *args: Any, **options: Any) -> None:
        path.mkdir(parents=True)
        torch.save({"iteration": self.lightning_module.iteration, "loops": {}}, path / "meta.pt")

    monkeypatch.setattr(Trainer, "save_checkpoint", sharded)
    fit(Tiny(), 3, [IterationCheckpoint(tmp_path / "checkpoints", every=1, keep=2)])
    assert names(tmp_path / "checkpoints") == ["iteration_000002.ckpt", "iteration_000003.ckpt"]
    assert find_resume(tmp_path, "auto") == tmp_path / "checkpoints/iteration_000003.ckpt"
    fit(Tiny(), 3, [IterationCheckpoint(tmp_path / "checkpoints", every=1, keep=2)])  # over an existing one
