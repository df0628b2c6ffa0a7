"""Faults that a command line can ask for: `+callbacks.fault._target_=tests.faults.inject.Sends`."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer


class Sends(Callback):
    """Signals to this process, within an iteration; `took` pretends that an earlier one was so long."""

    def __init__(self, numbers: Sequence[int], iteration: int = 2, took_s: float = 0.0) -> None:
        self.numbers, self.iteration, self.took_s = list(numbers), iteration, took_s

    def on_train_batch_start(self, trainer: Trainer, learner: Any, batch: Any, batch_idx: int) -> None:
        if learner.iteration + 1 == self.iteration:
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if self.took_s and hasattr(callback, "_took"):
                    callback._took.append(self.took_s)
            numbers, self.numbers = self.numbers, []
            for number in numbers:
                os.kill(os.getpid(), number)


class Poisons(Callback):
    """The losses of these optimizer steps are NaN."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        loss, update, count = learner.loss, learner.update, [0]

        def counted(*rows: Any) -> None:
            count[0] += 1
            update(*rows)

        def poisoned(micro: Any, totals: Any) -> torch.Tensor:
            found: torch.Tensor = loss(micro, totals)
            return found * math.nan if count[0] in self.steps else found

        learner.loss, learner.update = poisoned, counted


class FillsDisk(Callback):
    """No room for a checkpoint while these iterations are saved, nor for the file `at`."""

    def __init__(self, iterations: Sequence[int], at: str | None = None) -> None:
        self.iterations, self.at = list(iterations), at

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        save = trainer.strategy.checkpoint_io.save_checkpoint

        def full(checkpoint: Any, path: Any, **options: Any) -> None:
            if learner.iteration not in self.iterations:
                save(checkpoint, path, **options)
                return
            Path(path).write_bytes(b"PK")
            raise OSError(errno.ENOSPC, "No space left on device")

        trainer.strategy.checkpoint_io.save_checkpoint = full  # type: ignore[method-assign]

    def on_train_batch_start(self, trainer: Trainer, learner: Any, batch: Any, batch_idx: int) -> None:
        if self.at and learner.iteration + 1 in self.iterations:
            Path(self.at).unlink()
            Path(self.at).symlink_to("/dev/full")
