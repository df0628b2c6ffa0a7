"""Checkpoints by iteration: the only count that a policy version has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer

from rlmods.run.resume import numbered


class IterationCheckpoint(Callback):
    """Saves `iteration_000012.ckpt` every so many iterations and after the last, whole or not at all, and keeps the newest."""

    def __init__(self, folder: str | Path, every: int = 10, keep: int = 2) -> None:
        """
        Args:
            folder: where they go.
            every: iterations between two; 0 saves only the last.
            keep: how many stay; 0 keeps all.
        """
        self.folder, self.every, self.keep = Path(folder), every, keep
        self._saved = -1

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        self._saved = learner.iteration
        if trainer.is_global_zero:
            for leftover in self.folder.glob(".iteration_*.tmp"):
                _remove(leftover)
        trainer.strategy.barrier()

    def on_train_batch_end(self, trainer: Trainer, learner: Any, *args: Any) -> None:
        last = learner.iteration >= getattr(trainer, "max_iterations", float("inf"))
        if last or (self.every and learner.iteration % self.every == 0):
            self._save(trainer, learner.iteration)

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._save(trainer, learner.iteration)

    def on_save_checkpoint(self, trainer: Trainer, learner: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["iteration"] = learner.iteration

    def _save(self, trainer: Trainer, iteration: int) -> None:
        """Every rank: a sharded strategy writes from all of them, into a folder instead of a file."""
        if iteration == self._saved:  # a batch of prompts need not complete an iteration
            return
        self._saved = iteration
        final = self.folder / f"iteration_{iteration:06d}.ckpt"
        temporary = self.folder / f".{final.name}.tmp"
        trainer.save_checkpoint(temporary, weights_only=False)  # ends in a barrier
        if trainer.is_global_zero:
            if temporary.is_dir():
                _remove(final)  # a folder replaces no other
            os.replace(temporary, final)
            older = [path for number, path in numbered(self.folder) if number <= iteration]
            for path in older[: -self.keep] if self.keep else []:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
