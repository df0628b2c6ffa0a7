"""Checkpoints, saved and named by iteration."""

from __future__ import annotations

import math
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from rlmods.callbacks.hooks import Metrics, Rows, as_learner, is_due
from rlmods.callbacks.summary import model_card
from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError, in_one_line
from rlmods.run import atomic_write, dumps
from rlmods.run.checkpoints import (
    CHECKPOINT_NAME,
    Checksums,
    DirectCheckpointIO,
    compute_checksums,
    list_checkpoints,
    sync,
    write_manifest,
)
from rlmods.run.saved import SavedRun
from rlmods.settings.bounds import check_bounds

if TYPE_CHECKING:
    from rlmods.algo import Learner

EXPORT_NAME = "iteration_{:06d}_export"
"""Folder of the exported model beside a checkpoint."""
BEST_EXPORT = "export_best"
"""Folder of the exported model of the best iteration, beside the folder of the checkpoints."""


MIN_PAUSE = 20.0
"""Smallest pause before a checkpoint by time, in times of saving the last one."""


class IterationCheckpoint(Checkpoint):
    """Save `iteration_000012.ckpt` every `every` iterations, or `every_s` seconds, and after the
    last, atomically, and keep the newest.

    If a checkpoint cannot be written (full disk), warn, log `checkpoint/failures` (failures so far
    in this process), keep the older ones and try again after the next iteration. If the last
    checkpoint fails, the run fails after its export."""

    def __init__(
        self,
        folder: str | Path,
        every: int = 10,
        keep: int = 2,
        keep_every: int = 0,
        best: str | None = None,
        best_mode: Literal["max", "min"] = "max",
        export: str | None = None,
        every_s: float | None = 300.0,
    ) -> None:
        """
        Args:
            folder: folder of the checkpoints.
            every: iterations between checkpoints; 0 saves only the last.
            keep: number of newest checkpoints to keep; 0 keeps all.
            keep_every: keep the checkpoint of every N-th iteration permanently; 0: none.
            best: validation metric, such as val/accuracy, whose best iteration (the first of equal
            ones, not the one before training) is saved and kept; `best.json` names it. null: none.
            best_mode: max or min.
            export: Hugging Face directories beside the run's `export/`. best: `export_best/` of the
            best iteration; all: also `iteration_000012_export/` of every checkpoint. null: none.
            every_s: an iteration that ends so many seconds after the last checkpoint is saved too.
            After a slow one it is 20 times what saving took, if that is more.

        Raises:
            ValueError: a negative count, an unknown mode, or `export=best` without `best`.
        """
        self.folder = Path(folder)
        self.every = every
        self.every_s = every_s
        self.keep = keep
        self.keep_every = keep_every
        self.best = best
        self.best_mode = best_mode
        self.export = export
        exports = (None, "all") if best is None else (None, "best", "all")
        rules = {
            "every": (every >= 0, "0 or more"),
            "keep": (keep >= 0, "0 or more"),
            "keep_every": (keep_every >= 0, "0 or more"),
            "every_s": (every_s is None or every_s > 0, "null or above 0"),
            "best_mode": (best_mode in ("max", "min"), "max or min"),
            "export": (
                export in exports,
                "null, all, or best with callbacks.checkpoint.best=val/accuracy",
            ),
        }
        check_bounds(self, "callbacks.checkpoint", rules)
        self.failures = 0
        self._last_attempt = -1
        self._attempt_time = time.monotonic()
        self._pause_s = 0.0
        self._error: str | None = None
        self._unusable: set[int] = set()  # later than the resumed one, and not rewritten
        self._best: tuple[int, float] | None = None
        """Iteration and metric of the best checkpoint, the same on all ranks."""
        self._better: tuple[int, float] | None = None
        """Those of the latest validation, if it is better and not saved yet."""

    # Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = DirectCheckpointIO()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last_attempt = as_learner(pl_module).iteration
        self._attempt_time = time.monotonic()
        if trainer.is_global_zero:
            exports = self.folder.parent.glob(f".{BEST_EXPORT}.*tmp")
            for leftover in [*self.folder.glob(".iteration_*.tmp"), *exports]:
                _remove(leftover)
            saved = [number for number, _ in list_checkpoints(self.folder)]
            self._unusable = {number for number in saved if number > self._last_attempt}
            if self._best is not None and not self._path(self._best[0]).exists():
                self._best = None  # a fork does not have the checkpoints of its origin
        self._best = trainer.strategy.broadcast(self._best)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer, as_learner(pl_module))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """
        Raises:
            UserError: the last checkpoint could not be written.
        """
        if self._error:
            raise UserError(
                f"iteration {as_learner(pl_module).iteration} was not saved ({self._error}), "
                f"{self._describe_newest()}: make room in {self.folder}, then type resume=auto "
                "with the same run_dir"
            )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["iteration"] = as_learner(pl_module).iteration

    def state_dict(self) -> dict[str, Any]:
        if self.best is None:
            return {}
        return {"metric": self.best, "mode": self.best_mode, "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        is_same = (state_dict["metric"], state_dict["mode"]) == (self.best, self.best_mode)
        self._best = state_dict["best"] if is_same else None

    # The learner's hooks

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        """Called before `on_iteration_end` of the same iteration."""
        if self.best is None:
            return
        value = metrics.get(self.best, math.nan)
        if learner.iteration > 0 and self._is_better(value):
            self._better = (learner.iteration, value)
        elif learner.iteration == 0 and self.best not in metrics:
            raise UserError(
                f"callbacks.checkpoint.best={self.best}: no such validation metric, use one of "
                f"{', '.join(sorted(metrics))}"
            )

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        iteration = learner.iteration
        # before `on_train_end`, where other callbacks export first
        is_last = trainer.should_stop or iteration >= learner.max_iterations
        is_wanted = is_last or is_due(iteration, self.every) or is_due(iteration, self.keep_every)
        is_urgent = self._better is not None or self._error is not None
        is_overdue = False
        if self.every_s is not None:
            seconds = time.monotonic() - self._attempt_time
            is_late = seconds >= max(self.every_s, self._pause_s)
            is_overdue = bool(trainer.strategy.broadcast(is_late))
        if is_wanted or is_urgent or is_overdue:
            self._save(trainer, learner)

    def _is_better(self, value: float) -> bool:
        if self._best is None:
            return not math.isnan(value)
        return value > self._best[1] if self.best_mode == "max" else value < self._best[1]

    # Saving

    def _save(self, trainer: Trainer, learner: Learner) -> None:
        """Save a checkpoint; a collective, as a sharded strategy writes from all ranks, into a
        folder instead of a file."""
        iteration = learner.iteration
        if iteration == self._last_attempt:  # `on_train_end` after the last iteration
            return
        self._last_attempt = iteration
        started = time.monotonic()
        final = self._path(iteration)
        temporary = final.with_name(f".{final.name}.tmp")
        previous = self._best
        self._best = self._better or previous  # saved with it
        self._better = None
        with learner.timer.within("checkpoint"):
            self._error = _write(trainer, temporary, final)
        if self._error:
            self._best = previous
            message = (
                f"iteration {iteration} was not saved ({self._error}): training continues, "
                f"{self._describe_newest()}"
            )
            self._count_failure(trainer, learner, temporary, message)
            self._wait_after(started)
            return
        if self.export == "all":
            self._export(trainer, learner, self.folder / EXPORT_NAME.format(iteration))
        if self.export is not None and self._best != previous:
            self._export(trainer, learner, self.folder.parent / BEST_EXPORT)
        if trainer.is_global_zero:
            self._delete_old(iteration)
        self._wait_after(started)

    def _wait_after(self, started: float) -> None:
        """Let the next checkpoint by time wait for a multiple of what saving took."""
        self._attempt_time = time.monotonic()
        self._pause_s = MIN_PAUSE * (self._attempt_time - started)

    def _export(self, trainer: Trainer, learner: Learner, final: Path) -> None:
        """Write the model as a Hugging Face directory, replaced as a whole; a collective. If it
        cannot be written, warn and go on."""
        temporary = final.with_name(f".{final.name}.tmp")
        reason = None
        try:
            learner.export(temporary)
            if trainer.is_global_zero:
                card = model_card(SavedRun(self.folder.parent), learner.iteration)
                (temporary / "README.md").write_text(card)
                _replace(final, temporary)
        except (OSError, SafetensorError, UserError) as error:
            reason = _format_error(error)
        reason = _first_error(reason)
        if reason is not None:
            message = f"{final} was not written ({reason}): training continues"
            self._count_failure(trainer, learner, temporary, message)

    def _count_failure(
        self, trainer: Trainer, learner: Learner, temporary: Path, message: str
    ) -> None:
        self.failures += 1
        if trainer.is_global_zero:
            _remove(temporary)
            warnings.warn(message, stacklevel=2)
        learner.log_row({"checkpoint/failures": float(self.failures)})

    def _delete_old(self, iteration: int) -> None:
        """Delete the checkpoints that are not kept. Later ones than this iteration, which a resumed
        run repeats, are damaged or of another run: they are left alone until they are rewritten."""
        self._unusable.discard(iteration)
        saved = [number for number, _ in list_checkpoints(self.folder) if number <= iteration]
        saved = [number for number in saved if number not in self._unusable]
        kept = set(saved[-self.keep :] if self.keep else saved)
        kept.update(number for number in saved if is_due(number, self.keep_every))
        try:
            if self._best is not None:
                best, value = self._best
                content = {
                    "metric": self.best,
                    "mode": self.best_mode,
                    "checkpoint": CHECKPOINT_NAME.format(best),
                    "value": value,
                }
                atomic_write(self.folder / "best.json", dumps(content, indent=2) + "\n")
                kept.add(best)
            for number in set(saved) - kept:
                _remove(self._path(number))
                _remove(self.folder / EXPORT_NAME.format(number))
        except (OSError, UserError) as error:
            message = f"{self.folder}: older checkpoints could not be deleted ({error})"
            warnings.warn(message, stacklevel=2)

    def _path(self, iteration: int) -> Path:
        return self.folder / CHECKPOINT_NAME.format(iteration)

    def _describe_newest(self) -> str:
        saved = list_checkpoints(self.folder)
        if saved:
            return f"the newest checkpoint is of iteration {saved[-1][0]}"
        return "there is no checkpoint"


def _write(trainer: Trainer, temporary: Path, final: Path) -> str | None:
    """Save to `temporary`, sync it to disk, with checksums if sharded, and rename it. Return the
    error, the same on all ranks; no rank waits for one that failed."""
    reason = None
    try:
        trainer.save_checkpoint(temporary, weights_only=False)  # ends in a barrier
    except (OSError, RuntimeError) as error:
        # on the first rank, while the others are in that barrier
        is_disk_error = isinstance(error, OSError) or "inline_container" in str(error)  # of torch
        if not is_disk_error:
            raise
        reason = _format_error(error)
        trainer.strategy.barrier()
    except CheckpointException as error:  # on every rank
        causes = [pair[0] for pair in error.failures.values()]
        reason = _format_error(causes[0] if causes else error)
    is_sharded = trainer.strategy.broadcast(temporary.is_dir())
    checksums: Checksums = {}
    try:
        if is_sharded and reason is None:
            checksums = compute_checksums(temporary, trainer.global_rank, trainer.world_size)
    except OSError as error:
        reason = _format_error(error)
    reason = _first_error(reason)
    parts = all_gather(checksums)
    if trainer.is_global_zero and reason is None:
        try:
            if is_sharded:
                write_manifest(temporary, parts)
            if final.is_dir():  # which os.replace cannot replace
                _remove(final)
            sync(temporary)
            os.replace(temporary, final)
            sync(final.parent)
        except (OSError, UserError) as error:
            reason = _format_error(error)
    return _first_error(reason)


def _first_error(reason: str | None) -> str | None:
    return next(filter(None, all_gather(reason)), None)


def _format_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return in_one_line(error, 100)


def _replace(folder: Path, new: Path) -> None:
    """Put the folder `new` in the place of another, which is deleted last. (os.replace cannot
    replace a folder that is not empty.)"""
    old = folder.with_name(f".{folder.name}.old.tmp")
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def _remove(path: Path) -> None:
    """Delete a checkpoint. A folder is renamed first, so that a partly deleted one is not taken for
    a checkpoint."""
    if path.is_dir():
        renamed = path if path.name.startswith(".") else path.with_name(f".{path.name}.old.tmp")
        os.replace(path, renamed)
        shutil.rmtree(renamed)
    else:
        path.unlink(missing_ok=True)
