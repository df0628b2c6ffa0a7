"""Signals: the run ends where nothing is lost, or where least is."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from rlmods.types import UserError

REQUEUE = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Sent by schedulers, before they kill."""
EX_TEMPFAIL = 75
"""Exit status that asks for the same command once more."""


class DeadlineError(Exception):
    """Raised within an iteration that would not have ended in time. What it did is lost."""


class GracefulStop(Callback):
    """SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C let the iteration end; it is saved, and the run goes on exactly there with resume=auto.

    The signals of schedulers set a deadline as well: an iteration that is not expected to end by then, judging by the latest ones, or has
    not, is given up where it stands and repeated by the resumed run. The exit status is 75 after them, 130 after Ctrl-C. A second Ctrl-C
    stops at once. Any rank may get the signal; all of them stop after the same iteration.
    """

    def __init__(self, grace_s: float | None = 240.0) -> None:
        """
        Args:
            grace_s: seconds from the signal until the scheduler kills; null: the iteration always ends.

        Raises:
            UserError: a negative time.
        """
        if grace_s is not None and not grace_s >= 0:
            raise UserError(f"callbacks.stop.grace_s={grace_s}: must be null, 0 or more")
        self.grace_s = grace_s
        self.signal: int | None = None
        """The one that ends the run, on all ranks."""
        self.gave_up = False
        """Whether it ends within an iteration."""
        self._heard = 0
        self._deadline = float("inf")
        self._began = time.monotonic()
        self._took: deque[float] = deque(maxlen=5)
        self._iteration = 0
        self._before: dict[int, Any] = {}
        self._first = True
        self._tell_launcher: Callable[[int], None] = lambda number: None

    @property
    def exit_status(self) -> int:
        """75, 130, or 1 where no signal ended the run."""
        return {None: 1, int(signal.SIGINT): 130}.get(self.signal, EX_TEMPFAIL)

    def follow(self, why: str) -> bool:
        """Whether a rank that is lost has given up, or this one was asked to end too: then this one has given up with it."""
        if self._heard or DeadlineError.__name__ in why:
            self.signal, self.gave_up = self._heard or int(signal.SIGTERM), True
        return self.gave_up

    def come_early(self) -> bool:
        """Whether Ctrl-C came before training listened to it: there was nothing to end."""
        if not self._heard and self.signal is None:
            self.signal = int(signal.SIGINT)
            return True
        return False

    # Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        environment = getattr(trainer.strategy, "cluster_environment", None)
        if isinstance(environment, SLURMEnvironment):
            environment.auto_requeue = False  # Lightning's own would save a checkpoint of its own, within an iteration

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        self.signal, self._heard, self._deadline = None, 0, float("inf")
        self._iteration, self._began = learner.iteration, time.monotonic()
        rollout: Any = getattr(learner, "rollout", None)
        if hasattr(rollout, "on_tokens"):
            shown = rollout.on_tokens

            def on_tokens(*progress: int) -> None:
                self.on_safe_point(trainer, learner)
                if shown is not None:
                    shown(*progress)

            rollout.on_tokens = on_tokens
        self._listen(trainer)

    def on_train_batch_end(self, trainer: Trainer, learner: Any, *args: Any) -> None:
        """All ranks, once an iteration: the latest is over, its validation too."""
        if learner.iteration == self._iteration:  # a batch of prompts need not complete an iteration
            return
        self._iteration = learner.iteration
        now = time.monotonic()
        self._took.append(now - self._began)
        self._began = now
        heard = torch.tensor(float(self._heard), device=trainer.strategy.root_device)
        number = int(trainer.strategy.reduce(heard, reduce_op="max"))
        if number:
            self.signal = number
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        """Comes after the checkpoint's. Other signals stay ours until Lightning takes all of them back: its own handler would speak to
        ranks that are busy."""
        self._give_back(signal.SIGINT)

    def on_exception(self, trainer: Trainer, learner: Any, exception: BaseException) -> None:
        self._hang_up()

    # Ours

    def on_safe_point(self, trainer: Trainer, learner: Any) -> None:
        """
        Raises:
            DeadlineError: the iteration would not end in time.
        """
        if time.monotonic() > self._deadline:
            self.signal, self.gave_up = self._heard, True
            raise DeadlineError(f"iteration {learner.iteration + 1} would not have ended within {self.grace_s:g} s")

    def hear(self, number: int) -> None:
        """What a signal does: set a deadline, and say so once."""
        self._heard = max(self._heard, number)
        if number == signal.SIGINT:
            self._give_back(signal.SIGINT)
            self._say("Ctrl-C again stops at once")
            return
        if self._deadline < float("inf"):  # schedulers repeat themselves
            return
        self._tell_launcher(number)
        now = time.monotonic()
        self._deadline = now + (1e9 if self.grace_s is None else self.grace_s)
        if self._began + max(self._took, default=0.0) > self._deadline:
            self._deadline = now
        self._say(f"it was {signal.Signals(number).name}")

    def _say(self, why: str) -> None:
        if self._first:
            print(f"\nstopping after iteration {self._iteration + 1}; {why}", file=sys.stderr, flush=True)

    def _listen(self, trainer: Trainer) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._first = trainer.is_global_zero
        launcher = trainer.strategy.launcher
        self._tell_launcher = getattr(launcher, "kill", self._tell_launcher)  # ranks that this one has started
        for number in (signal.SIGINT, *REQUEUE):
            heard_by = signal.getsignal(number)
            nobody = (None, signal.SIG_IGN)  # as in a background job
            if heard_by not in nobody and (number != signal.SIGINT or heard_by is signal.default_int_handler):
                self._before[number] = signal.signal(number, lambda number, _: self.hear(number))

    def _hang_up(self) -> None:
        for number in list(self._before):
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        if number in self._before:
            signal.signal(number, self._before.pop(number))
