"""Watchdog: ends a process that makes no progress."""

from __future__ import annotations

import faulthandler
import math
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightning import Callback, LightningModule, Trainer

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.settings.bounds import Positive, bounded

if TYPE_CHECKING:
    from rlmods.algo import Learner

MIN_INTERVAL_S = 1.0
"""Safe points that follow each other faster do not restart the timer."""


@dataclass(eq=False)
@bounded("callbacks.watchdog")
class Watchdog(Callback):
    """End this process with status 1, and print the stacks of all its threads, if it makes no
    progress for `timeout_s`: no new phase, no microbatch, no token.

    The timer is a thread of `faulthandler`, which needs no interpreter lock, so native code that
    never returns is ended too. Other ranks end when the connection to this one is lost, or at the
    time limit of their collective (`trainer.strategy.timeout_s`, by default the same)."""

    timeout_s: Positive | None = 1800.0
    """Seconds, longer than the slowest call of a reward or a judge; null: no limit, as for a
    debugger."""
    _restarted: float = field(default=-math.inf, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if sys.__stderr__ is not None and not faulthandler.is_enabled():
            faulthandler.enable(file=sys.__stderr__)  # also for crashes of native code
        self._restart()

    def on_safe_point(self, trainer: Trainer, learner: Learner) -> None:
        if time.monotonic() - self._restarted >= MIN_INTERVAL_S:
            self._restart()

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        self._restart()

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        self._restart()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        faulthandler.cancel_dump_traceback_later()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        faulthandler.cancel_dump_traceback_later()

    def _restart(self) -> None:
        self._restarted = time.monotonic()
        # in a program without a console there is nowhere to write to
        if self.timeout_s is not None and sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(self.timeout_s, exit=True, file=sys.__stderr__)
