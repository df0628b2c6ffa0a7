"""Checkpoints by iteration: the only count that a policy version has."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch.distributed.checkpoint.api import CheckpointException

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.callbacks.retention import Retention
from rlmods.distributed.collectives import all_gather
from rlmods.run.integrity import DirectFile, Seals, seal, sync, write_manifest
from rlmods.run.resume import NAME, numbered
from rlmods.types import UserError


class IterationCheckpoint(Callback):
    """Saves `iteration_000012.ckpt` every so many iterations and after the last, whole or not at all, and keeps the newest.

    One that cannot be written (a full disk) costs a warning, a row `checkpoint/failures` (how many there were in this process) and another
    attempt after the next iteration; the older ones stay. Where the last one fails, so does the run, when all else is done.
    """

    def __init__(
        self,
        folder: str | Path,
        every: int = 10,
        keep: int = 2,
        keep_every: int = 0,
        best: str | None = None,
        best_mode: str = "max",
    ) -> None:
        """
        Args:
            folder: where they go.
            every: iterations between two; 0 saves only the last.
            keep: how many of the newest stay; 0 keeps all.
            keep_every: iterations between those that stay for ever; 0: none does.
            best: a validation metric, such as val/accuracy: the iteration with the best is saved, and stays; `best.json` names it. Of
                equal ones it is the first, and the validation before the first iteration does not count. null: none.
            best_mode: max or min.

        Raises:
            UserError: a negative count, an unknown mode.
        """
        if every < 0:
            raise UserError(f"callbacks.checkpoint.every={every}: must be 0 or more")
        self.folder, self.every = Path(folder), every
        self.retention = Retention(keep, keep_every, best, best_mode)  # type: ignore[arg-type]
        self.failures = 0
        self._saved = self._tried = -1
        self._failed: str | None = None
        self._known: set[int] = set()
        """Iterations whose checkpoints are of this run, and not of a future that a broken one has undone. On the first rank."""
        self._values: dict[int, float] = {}
        """The metric of `best`, by saved iteration."""
        self._validated: tuple[int, float] | None = None
        """Iteration and metric of the latest validation."""
        self._improved = False
        """Whether that is the best so far, and not saved."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = DirectFile()

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        self._saved = self._tried = learner.iteration
        values: dict[int, float] = {}
        if trainer.is_global_zero:
            for leftover in self.folder.glob(".iteration_*.tmp"):
                _remove(leftover)
            self._known = {iteration for iteration, _ in numbered(self.folder) if iteration <= learner.iteration}
            values = self.retention.read(self.folder / "best.json", self._known)
        self._values = trainer.strategy.broadcast(values)

    def on_validation_metrics(self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows) -> None:
        """Comes before the batch ends that the iteration ends with."""
        name = self.retention.best
        if name is None:
            return
        if learner.iteration == 0:
            if name not in metrics:
                raise UserError(f"callbacks.checkpoint.best={name}: validation gives {', '.join(sorted(metrics))}")
            return
        if name in metrics:
            self._validated = (learner.iteration, metrics[name])
            best = self.retention.best_of(self._values | dict([self._validated]))
            self._improved = trainer.strategy.broadcast(best == learner.iteration)

    def on_train_batch_end(self, trainer: Trainer, learner: Any, *args: Any) -> None:
        iteration = learner.iteration
        last = iteration >= getattr(trainer, "max_iterations", float("inf"))
        due = (self.every and iteration % self.every == 0) or self.retention.due(iteration)
        if last or due or self._failed or self._improved:
            self._save(trainer, learner)

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._save(trainer, learner)

    def teardown(self, trainer: Trainer, learner: Any, stage: str) -> None:
        """
        Raises:
            UserError: the last checkpoint is not there.
        """
        if self._failed:
            advice = f"make room in {self.folder}, then type resume=auto with the same run_dir"
            raise UserError(f"iteration {learner.iteration} was not saved ({self._failed}), {self._kept()}: {advice}")

    def on_save_checkpoint(self, trainer: Trainer, learner: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["iteration"] = learner.iteration

    def _save(self, trainer: Trainer, learner: Any) -> None:
        """Every rank: a sharded strategy writes from all of them, into a folder instead of a file."""
        iteration = learner.iteration
        if iteration == self._tried:  # a batch of prompts need not complete an iteration
            return
        self._tried = iteration
        final = self.folder / NAME.format(iteration)
        temporary = self.folder / f".{final.name}.tmp"
        self._failed = _write(trainer, temporary) or _publish(trainer, temporary, final)
        self._improved = False
        if self._failed:
            self.failures += 1
            if trainer.is_global_zero:
                shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else temporary.unlink(missing_ok=True)
                warnings.warn(f"iteration {iteration} was not saved ({self._failed}): the run goes on, {self._kept()}", stacklevel=2)
            learner.log_row({"checkpoint/failures": float(self.failures)})
        else:
            self._saved = iteration
            if self._validated and self._validated[0] == iteration:
                self._values[iteration] = self._validated[1]
            self._known.add(iteration)
            self._tidy(trainer)

    def _tidy(self, trainer: Trainer) -> None:
        there = {number: path for number, path in numbered(self.folder) if number in self._known} if trainer.is_global_zero else {}
        kept = self.retention.kept(there, self._values)
        self._values = trainer.strategy.broadcast({number: value for number, value in self._values.items() if number in kept})
        if trainer.is_global_zero:
            try:
                self.retention.write(self.folder / "best.json", self._values, NAME)
                for number in there.keys() - kept:
                    _remove(there[number])
            except (OSError, UserError) as error:
                warnings.warn(f"{self.folder}: older checkpoints stay ({error})", stacklevel=2)

    def _kept(self) -> str:
        return f"the newest checkpoint is of iteration {self._saved}" if self._saved > 0 else "there is no checkpoint"


def _write(trainer: Trainer, path: Path) -> str | None:
    """What went wrong, if anything did: the same on all ranks, none of which waits for another that failed."""
    reason = None
    try:
        trainer.save_checkpoint(path, weights_only=False)  # ends in a barrier
    except (OSError, RuntimeError) as error:  # of the first rank, while the others are in that barrier
        if not isinstance(error, OSError) and "inline_container" not in str(error):  # which is torch's writer
            raise
        reason = _short(error)
        trainer.strategy.barrier()
    except CheckpointException as error:  # on every rank
        reason = _short(next((pair[0] for pair in error.failures.values()), error))
    return next(filter(None, all_gather(reason)), None)


def _publish(trainer: Trainer, temporary: Path, final: Path) -> str | None:
    """On disk and sealed, and only then under its name. What went wrong, if anything did, on all ranks."""
    reason: str | None = None
    seals: Seals = {}
    sharded = trainer.strategy.broadcast(temporary.is_dir())
    try:
        if sharded:
            seals = seal(temporary, trainer.global_rank, trainer.world_size)
    except OSError as error:
        reason = _short(error)
    parts = all_gather((seals, reason))
    reason = next((failed for _, failed in parts if failed), None)
    if trainer.is_global_zero and reason is None:
        try:
            if sharded:
                write_manifest(temporary, (part for part, _ in parts))
                _remove(final)  # a folder replaces no other
            sync(temporary)
            os.replace(temporary, final)
            sync(final.parent)
        except (OSError, UserError) as error:
            reason = _short(error)
    verdict: str | None = trainer.strategy.broadcast(reason)
    return verdict


def _short(error: BaseException) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split())[:100]


def _remove(path: Path) -> None:
    """A folder gets another name first: what is left of it, if this is cut off, is taken for no checkpoint."""
    if path.is_dir():
        doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}.old.tmp")
        os.replace(path, doomed)
        shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)
