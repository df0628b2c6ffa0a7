"""Checkpoints by iteration: the only count that a policy version has."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer

from rlmods.run.resume import numbered


class IterationCheckpoint(Callback):
    """Saves `iteration_000012.ckpt` every so many iterations and after the last, whole or not at all, and keeps the newest.

    Ctrl-C lets the iteration end and saves it, so that the run goes on exactly where it stood; a second one stops at once. (On one
    rank: several would have to agree on the iteration, there it stops at once.)
    """

    def __init__(self, folder: str | Path, every: int = 10, keep: int = 2) -> None:
        """
        Args:
            folder: where they go.
            every: iterations between two; 0 saves only the last.
            keep: how many stay; 0 keeps all.
        """
        self.folder, self.every, self.keep = Path(folder), every, keep
        self._saved = -1
        self._asked_to_stop = False
        self._before: Any = None

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        self._saved, self._asked_to_stop = learner.iteration, False
        self._listen(trainer, learner)
        if trainer.is_global_zero:
            for leftover in self.folder.glob(".iteration_*.tmp"):
                _remove(leftover)
        trainer.strategy.barrier()

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Any) -> None:
        trainer.should_stop = trainer.should_stop or self._asked_to_stop

    def on_train_batch_end(self, trainer: Trainer, learner: Any, *args: Any) -> None:
        last = learner.iteration >= getattr(trainer, "max_iterations", float("inf"))
        if last or (self.every and learner.iteration % self.every == 0):
            self._save(trainer, learner.iteration)

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._save(trainer, learner.iteration)
        self._hang_up()

    def on_exception(self, trainer: Trainer, learner: Any, exception: BaseException) -> None:
        self._hang_up()

    def on_save_checkpoint(self, trainer: Trainer, learner: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["iteration"] = learner.iteration

    def _listen(self, trainer: Trainer, learner: Any) -> None:
        ours = trainer.world_size == 1 and threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return

        def stop(number: int, frame: Any) -> None:
            self._asked_to_stop = True
            self._hang_up()
            print(f"\nstopping after iteration {learner.iteration + 1}; Ctrl-C again stops at once", file=sys.stderr, flush=True)

        self._before = signal.signal(signal.SIGINT, stop)

    def _hang_up(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

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
