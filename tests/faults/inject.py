"""Faults enabled on the command line:
`+callbacks.fault._target_=tests.faults.inject.SendSignals`."""

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer


class SendSignals(Callback):
    """Send signals to this process within an iteration; `duration_s` fakes the duration of an
    earlier iteration."""

    def __init__(self, numbers: Sequence[int], iteration: int = 2, duration_s: float = 0.0) -> None:
        self.numbers = list(numbers)
        self.iteration = iteration
        self.duration_s = duration_s

    def on_train_batch_start(
        self, trainer: Trainer, learner: Any, batch: Any, batch_idx: int
    ) -> None:
        if learner.iteration + 1 == self.iteration:
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if self.duration_s and hasattr(callback, "_durations_s"):
                    callback._durations_s.append(self.duration_s)
            for number in self.numbers:
                os.kill(os.getpid(), number)
            self.numbers.clear()


class NaNLoss(Callback):
    """Replace the losses of these optimizer steps by NaN."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        loss = learner.loss
        update = learner.update
        count = 0

        def counted(*rows: Any) -> None:
            nonlocal count
            count += 1
            update(*rows)

        def nan_loss(micro: Any, totals: Any) -> torch.Tensor:
            value: torch.Tensor = loss(micro, totals)
            return value * math.nan if count in self.steps else value

        learner.loss = nan_loss
        learner.update = counted


class DiskFull(Callback):
    """Fail with a full disk when these iterations are saved, and when the file `path` is
    written."""

    def __init__(self, iterations: Sequence[int], path: str | None = None) -> None:
        self.iterations = iterations
        self.path = path

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        save = trainer.strategy.checkpoint_io.save_checkpoint

        def save_or_fail(checkpoint: Any, path: Any, **options: Any) -> None:
            if learner.iteration not in self.iterations:
                save(checkpoint, path, **options)
                return
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(b"PK")
            raise OSError(errno.ENOSPC, "No space left on device")

        trainer.strategy.checkpoint_io.save_checkpoint = save_or_fail  # type: ignore[method-assign]

    def on_train_batch_start(
        self, trainer: Trainer, learner: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.path and learner.iteration + 1 in self.iterations:
            Path(self.path).unlink()
            Path(self.path).symlink_to("/dev/full")
