"""Checkpoints, saved and named by iteration."""

from __future__ import annotations

import copy
import os
import shutil
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from rlmods.callbacks.hooks import Metrics, Rows, as_learner
from rlmods.callbacks.retention import Retention
from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError
from rlmods.policy.files import export_problem
from rlmods.run.card import model_card
from rlmods.run.integrity import (
    Checksums,
    DirectCheckpointIO,
    compute_checksums,
    sync,
    write_manifest,
)
from rlmods.run.resume import CHECKPOINT_NAME, list_checkpoints
from rlmods.run.saved import SavedRun

if TYPE_CHECKING:
    from rlmods.algo import Learner

EXPORT_NAME = "iteration_{:06d}_export"
"""Folder of the exported model beside a checkpoint."""
BEST_EXPORT = "export_best"
"""Folder of the exported model of the best iteration, beside the folder of the checkpoints."""


class IterationCheckpoint(Checkpoint):
    """Save `iteration_000012.ckpt` every `every` iterations, or `every_s` seconds, and after the
    last, atomically, and keep the newest.

    A run on a single rank that ends by an exception or Ctrl-C saves the last iteration first,
    unless optimizer steps of the next were made.

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

        Raises:
            UserError: a negative count, an unknown mode, or `export=best` without `best`.
        """
        if every < 0:
            raise UserError(f"callbacks.checkpoint.every={every}: must be 0 or more")
        if every_s is not None and not every_s > 0:
            raise UserError(f"callbacks.checkpoint.every_s={every_s}: must be null or above 0")
        if export not in (None, "best", "all"):
            raise UserError(f"callbacks.checkpoint.export={export}: must be null, best or all")
        if export == "best" and best is None:
            raise UserError(
                "callbacks.checkpoint.export=best needs a validation metric: type "
                "callbacks.checkpoint.best=val/accuracy"
            )
        self.folder = Path(folder)
        self.every = every
        self.every_s = every_s
        self.export = export
        self.retention = Retention(keep, keep_every, best, best_mode)
        self.failures = 0
        self._last_saved = -1
        self._last_attempt = -1
        self._attempt_time = time.monotonic()
        self._error: str | None = None
        self._own: set[int] = set()
        """Iterations with checkpoints of this run, without damaged ones later than the one resumed
        from. First rank only."""
        self._values: dict[int, float] = {}
        """Metric `best`, by saved iteration."""
        self._last_validation: tuple[int, float] | None = None
        """Iteration and metric of the latest validation."""
        self._is_best = False
        """True if the latest validation is the best so far and not saved yet."""
        self._unsaved: _Unsaved | None = None

    # Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = DirectCheckpointIO()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        iteration = as_learner(pl_module).iteration
        self._last_saved = iteration
        self._last_attempt = iteration
        self._attempt_time = time.monotonic()
        values: dict[int, float] = {}
        if trainer.is_global_zero:
            for leftover in self.folder.glob(".iteration_*.tmp"):
                _remove(leftover)
            for leftover in self.folder.parent.glob(f".{BEST_EXPORT}.*tmp"):
                _remove(leftover)
            existing = [number for number, _ in list_checkpoints(self.folder)]
            self._own = {number for number in existing if number <= iteration}
            values = self.retention.read_values(self.folder / "best.json", self._own)
        self._values = trainer.strategy.broadcast(values)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer, as_learner(pl_module))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save the end of the last iteration, if this is the only rank and no optimizer step was
        made since."""
        unsaved = self._unsaved
        self._unsaved = None
        optimizer_steps = as_learner(pl_module).optimizer_steps
        if unsaved is None or self._error or unsaved.optimizer_steps != optimizer_steps:
            return
        final = self.folder / CHECKPOINT_NAME.format(unsaved.iteration)
        temporary = self.folder / f".{final.name}.tmp"
        try:
            trainer.strategy.save_checkpoint(unsaved.checkpoint, temporary)
            sync(temporary)
            os.replace(temporary, final)
        except (OSError, RuntimeError) as error:  # do not hide the exception
            temporary.unlink(missing_ok=True)
            reason = _format_error(error)
            warnings.warn(f"iteration {unsaved.iteration} was not saved ({reason})", stacklevel=2)
        else:
            self._own.add(unsaved.iteration)
            self._delete_old(trainer)

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

    # The learner's hooks

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        """Called before `on_iteration_end` of the same iteration."""
        name = self.retention.best
        if name is None:
            return
        if learner.iteration == 0:
            if name not in metrics:
                raise UserError(
                    f"callbacks.checkpoint.best={name}: no such validation metric, use one of "
                    f"{', '.join(sorted(metrics))}"
                )
        elif name in metrics:
            self._last_validation = (learner.iteration, metrics[name])
            values = {**self._values, learner.iteration: metrics[name]}
            is_best = self.retention.best_iteration(values) == learner.iteration
            self._is_best = trainer.strategy.broadcast(is_best)

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        iteration = learner.iteration
        is_last = iteration >= learner.max_iterations
        is_due = self.every > 0 and iteration % self.every == 0
        is_permanent = self.retention.is_permanent(iteration)
        is_wanted = is_last or is_due or is_permanent or self._is_best or bool(self._error)
        if is_wanted or self._is_overdue(trainer):
            self._save(trainer, learner)
        self._keep_state(trainer, learner)

    def _is_overdue(self, trainer: Trainer) -> bool:
        """Return True on all ranks if `every_s` has passed on the first."""
        if self.every_s is None:
            return False
        overdue = time.monotonic() - self._attempt_time >= self.every_s
        return bool(trainer.strategy.broadcast(overdue))

    def _keep_state(self, trainer: Trainer, learner: Learner) -> None:
        """Keep what a checkpoint of this iteration holds for `on_exception`: weights and optimizer
        as references, which only an optimizer step changes, and copies of everything else. Other
        ranks could not take part in saving it."""
        self._unsaved = None
        is_sharded = isinstance(trainer.strategy, ModelParallelStrategy)
        if trainer.world_size > 1 or is_sharded or learner.iteration == self._last_saved:
            return
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        kept = checkpoint.keys() & {"state_dict", "optimizer_states"}
        weights = {key: checkpoint.pop(key) for key in kept}
        copied = copy.deepcopy(checkpoint)
        self._unsaved = _Unsaved(copied | weights, learner.iteration, learner.optimizer_steps)

    # Saving

    def _save(self, trainer: Trainer, learner: Learner) -> None:
        """Save a checkpoint; a collective, as a sharded strategy writes from all ranks, into a
        folder instead of a file."""
        iteration = learner.iteration
        if iteration == self._last_attempt:  # `on_train_end` after the last iteration
            return
        self._last_attempt = iteration
        self._attempt_time = time.monotonic()
        final = self.folder / CHECKPOINT_NAME.format(iteration)
        temporary = self.folder / f".{final.name}.tmp"
        with learner.timer.within("checkpoint"):
            self._error = _write(trainer, temporary) or _publish(trainer, temporary, final)
        is_best = self._is_best
        self._is_best = False
        if self._error:
            message = (
                f"iteration {iteration} was not saved ({self._error}): training continues, "
                f"{self._describe_newest()}"
            )
            self._count_failure(trainer, learner, temporary, message)
            return
        self._last_saved = iteration
        self._own.add(iteration)
        if self._last_validation is not None and self._last_validation[0] == iteration:
            self._values[iteration] = self._last_validation[1]
        if self.export == "all":
            self._export(trainer, learner, self.folder / EXPORT_NAME.format(iteration))
        if self.export is not None and is_best:
            self._export(trainer, learner, self.folder.parent / BEST_EXPORT)
        self._delete_old(trainer)

    def _export(self, trainer: Trainer, learner: Learner, final: Path) -> None:
        """Write the model as a Hugging Face directory, replaced as a whole; a collective. If it
        cannot be written or loaded, warn and go on."""
        temporary = final.with_name(f".{final.name}.tmp")
        reason: str | None = None
        try:
            learner.export(temporary)
            if trainer.is_global_zero:
                card = model_card(SavedRun(self.folder.parent), learner.iteration)
                (temporary / "README.md").write_text(card)
                reason = export_problem(temporary)
                if reason is None:
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
        """Warn of and log a failure, and delete what was written."""
        self.failures += 1
        if trainer.is_global_zero:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)
            warnings.warn(message, stacklevel=2)
        learner.log_row({"checkpoint/failures": float(self.failures)})

    def _delete_old(self, trainer: Trainer) -> None:
        saved = list_checkpoints(self.folder) if trainer.is_global_zero else []
        existing = {number: path for number, path in saved if number in self._own}
        kept = self.retention.select(existing, self._values)
        values = {number: value for number, value in self._values.items() if number in kept}
        self._values = trainer.strategy.broadcast(values)
        if not trainer.is_global_zero:
            return
        try:
            self.retention.write_values(self.folder / "best.json", self._values, CHECKPOINT_NAME)
            for number in existing.keys() - kept:
                _remove(existing[number])
                _remove(self.folder / EXPORT_NAME.format(number))
        except (OSError, UserError) as error:
            message = f"{self.folder}: older checkpoints could not be deleted ({error})"
            warnings.warn(message, stacklevel=2)

    def _describe_newest(self) -> str:
        if self._last_saved > 0:
            return f"the newest checkpoint is of iteration {self._last_saved}"
        return "there is no checkpoint"


@dataclass(frozen=True)
class _Unsaved:
    """Checkpoint of the end of the last iteration, which is not saved."""

    checkpoint: dict[str, Any]
    iteration: int
    optimizer_steps: int


def _write(trainer: Trainer, path: Path) -> str | None:
    """Save to `path` and return the error, the same on all ranks; no rank waits for one that
    failed."""
    reason = None
    try:
        trainer.save_checkpoint(path, weights_only=False)  # ends in a barrier
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
    return _first_error(reason)


def _publish(trainer: Trainer, temporary: Path, final: Path) -> str | None:
    """Sync the checkpoint to disk, with checksums if sharded, then rename it. Return the error, the
    same on all ranks."""
    reason: str | None = None
    checksums: Checksums = {}
    is_sharded = trainer.strategy.broadcast(temporary.is_dir())
    try:
        if is_sharded:
            checksums = compute_checksums(temporary, trainer.global_rank, trainer.world_size)
    except OSError as error:
        reason = _format_error(error)
    parts = all_gather(checksums)
    reason = _first_error(reason)
    if trainer.is_global_zero and reason is None:
        try:
            if is_sharded:
                write_manifest(temporary, parts)
                _remove(final)  # os.replace cannot replace a folder that is not empty
            sync(temporary)
            os.replace(temporary, final)
            sync(final.parent)
        except (OSError, UserError) as error:
            reason = _format_error(error)
    shared_reason: str | None = trainer.strategy.broadcast(reason)
    return shared_reason


def _first_error(reason: str | None) -> str | None:
    """Return the error of the first rank that has one; a collective."""
    return next(filter(None, all_gather(reason)), None)


def _format_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:100]


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
