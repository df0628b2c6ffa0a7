"""Callbacks that end a run: on a signal, by the number of sampled tokens, or if a process hangs."""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from rlmods.callbacks.hooks import Metrics, as_learner
from rlmods.distributed.collectives import is_first_rank
from rlmods.protocols import ReportsTokens
from rlmods.settings.bounds import Count, NonNegative, Positive, bounded

if TYPE_CHECKING:
    from rlmods.algo import Learner

SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers send before they kill."""
EX_TEMPFAIL = 75
"""Exit status that asks the scheduler to run the same command again."""
MIN_INTERVAL_S = 1.0
"""Safe points that follow each other faster do not restart the timer of the watchdog."""
Handler = Callable[[int, FrameType | None], object] | int | None


class DeadlineError(Exception):
    """An iteration was aborted because it would not end before the deadline. Its work is lost."""


def graceful_stop(trainer: Trainer) -> GracefulStop:
    """Return the trainer's `GracefulStop`; if the user removed it, a new one that is added to the
    callbacks."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, GracefulStop):
            return callback
    callbacks.append(GracefulStop())
    return graceful_stop(trainer)


@dataclass(eq=False)
@bounded("callbacks.stop")
class GracefulStop(Callback):
    """On SIGTERM, SIGUSR1, SIGUSR2 or Ctrl-C, finish the iteration and save, without a further
    validation; resume=auto then continues exactly there.

    A scheduler's signal also sets a deadline: an iteration that is not expected to end by then
    (judged by the latest ones), or has not, is aborted, and repeated by the resumed run. The exit
    status is 75 after these signals, 130 after Ctrl-C. A second Ctrl-C stops at once. Any rank may
    receive the signal; all stop after the same iteration."""

    grace_s: NonNegative | None = 240.0
    """Seconds from the signal until the scheduler kills; null: the iteration always ends."""
    signal: int | None = field(default=None, init=False)
    """Signal that ends the run, the same on all ranks."""
    iteration_aborted: bool = field(default=False, init=False)
    """True if the run ends within an iteration."""
    _received: int = field(default=0, init=False)
    _deadline: float = field(default=math.inf, init=False)
    _iteration: int = field(default=0, init=False)
    _iteration_start: float = field(default=0.0, init=False)
    _durations_s: deque[float] = field(default_factory=partial(deque, maxlen=5), init=False)
    _previous_handlers: dict[int, Handler] = field(default_factory=dict, init=False)
    _forward_signal: Callable[[int], None] | None = field(default=None, init=False)

    @property
    def exit_status(self) -> int:
        """75 or 130; 1 if no signal ended the run."""
        if self.signal is None:
            return 1
        return 130 if self.signal == signal.SIGINT else EX_TEMPFAIL

    @property
    def interrupted(self) -> bool:
        """True if a signal ended the run."""
        return self.signal is not None or self.iteration_aborted

    def interrupted_with_other_ranks(self) -> bool:
        """Return True if this rank has received a signal, when the connection to another one is
        lost: that one has reached its deadline."""
        if self._received:
            self.signal = self._received
            self.iteration_aborted = True
        return self.iteration_aborted

    def interrupted_before_training(self) -> bool:
        """Return True if Ctrl-C came before the handlers were installed."""
        if self._received or self.signal is not None:
            return False
        self.signal = int(signal.SIGINT)
        return True

    # Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        environment = getattr(trainer.strategy, "cluster_environment", None)
        if isinstance(environment, SLURMEnvironment):
            # Lightning's requeueing saves its own checkpoint, within an iteration
            environment.auto_requeue = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        learner = as_learner(pl_module)
        self._iteration = learner.iteration
        self._iteration_start = time.monotonic()
        rollout = learner.rollout
        if isinstance(rollout, ReportsTokens):
            inner = rollout.on_tokens

            def on_tokens(*progress: int) -> None:
                learner.timer.on_safe_point()
                if inner is not None:
                    inner(*progress)

            rollout.on_tokens = on_tokens
        self._install_handlers(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore Ctrl-C, after the last checkpoint. The other handlers stay until Lightning resets
        all signals, because its own handler would forward them to ranks that are busy."""
        self._restore_handler(signal.SIGINT)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        for number in list(self._previous_handlers):
            self._restore_handler(number)

    # The learner's hooks

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        """Agree on a signal between ranks."""
        self._iteration = learner.iteration
        now = time.monotonic()
        self._durations_s.append(now - self._iteration_start)
        self._iteration_start = now
        received = torch.tensor(float(self._received), device=trainer.strategy.root_device)
        number = int(trainer.strategy.reduce(received, reduce_op="max"))
        if number:
            self.signal = number
            trainer.should_stop = True

    def on_safe_point(self, trainer: Trainer, learner: Learner) -> None:
        """
        Raises:
            DeadlineError: the deadline has passed.
        """
        if time.monotonic() > self._deadline:
            self.signal = self._received
            self.iteration_aborted = True
            raise DeadlineError(
                f"iteration {learner.iteration + 1} would not have ended within {self.grace_s:g} s"
            )

    # Signals

    def handle_signal(self, number: int, frame: FrameType | None = None) -> None:
        """Record a signal; set the deadline on the first one of a scheduler."""
        self._received = max(self._received, number)
        if number == signal.SIGINT:
            self._restore_handler(signal.SIGINT)
            self._print("press Ctrl-C again to stop at once")
            return
        if self._deadline < math.inf:  # schedulers repeat signals
            return
        if self._forward_signal is not None:
            self._forward_signal(signal.Signals(number))
        now = time.monotonic()
        self._deadline = now + (1e9 if self.grace_s is None else self.grace_s)
        expected_end = self._iteration_start + max(self._durations_s, default=0.0)
        if expected_end > self._deadline:
            self._deadline = now
        self._print(f"received {signal.Signals(number).name}")

    def _print(self, reason: str) -> None:
        if is_first_rank():
            line = f"\nstopping after iteration {self._iteration + 1}; {reason}"
            print(line, file=sys.stderr, flush=True)

    def _install_handlers(self, trainer: Trainer) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # to ranks that this one has started
        self._forward_signal = getattr(trainer.strategy.launcher, "kill", None)
        for number in (signal.SIGINT, *SCHEDULER_SIGNALS):
            handler = signal.getsignal(number)
            is_ignored = handler in (None, signal.SIG_IGN)  # as in a background job
            is_replaced = number == signal.SIGINT and handler is not signal.default_int_handler
            if not is_ignored and not is_replaced:
                self._previous_handlers[number] = signal.signal(number, self.handle_signal)

    def _restore_handler(self, number: int) -> None:
        if number in self._previous_handlers:
            signal.signal(number, self._previous_handlers.pop(number))


@dataclass(eq=False)
@bounded("callbacks.budget")
class TokenBudget(Callback):
    """Ends the run after the iteration that has sampled the last of `max_tokens` response tokens
    (`perf/sampled_tokens`), discarded groups included, with a last validation. Algorithms that draw
    more prompts, or write longer responses, then cost the same."""

    max_tokens: Count | None = None
    """Number of response tokens; null: no limit."""
    num_tokens: int = field(default=0, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run if its tokens are spent: one that is resumed at its end makes no further
        iteration."""
        if self.max_tokens is not None and self.num_tokens >= self.max_tokens:
            trainer.should_stop = True

    def on_iteration_metrics(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        self.num_tokens += int(metrics.get("perf/sampled_tokens", 0))
        self.on_train_start(trainer, learner)

    def state_dict(self) -> dict[str, Any]:
        return {"num_tokens": self.num_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_tokens = state["num_tokens"]


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
