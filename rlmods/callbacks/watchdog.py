"""A rank that dies or hangs takes the others with it, in time and by name."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from typing import Any

from lightning import Callback, Trainer

from rlmods.callbacks.beats import Beat, Board, connect
from rlmods.callbacks.stop import EX_TEMPFAIL, DeadlineError
from rlmods.types import UserError

GO_ON = "resume=auto goes on from the latest checkpoint"
FIRST_IS_GONE = "rank 0 is gone: its store does not answer"


class Watchdog(Callback):
    """On several ranks, each tells the others where it is, once a second, from a thread and over a connection of its own.

    A rank whose process has ended, or from which nothing is heard for `lost_s`, is lost. Where no rank shows a sign of life for
    `timeout_s`, those that are behind hang. Then every rank says which and where, one that hangs shows its stacks, and all end.
    """

    def __init__(self, timeout_s: float = 1800.0, lost_s: float = 60.0) -> None:
        """
        Args:
            timeout_s: seconds without a new stage, a microbatch or a forward on any rank: more than the slowest batch of rewards takes.
            lost_s: seconds without a word from a rank on another machine, or one that stands still, until it counts as lost.
        """
        for name, value in (("timeout_s", timeout_s), ("lost_s", lost_s)):
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive")
        self.timeout_s, self.lost_s, self.beat_s = timeout_s, lost_s, min(1.0, timeout_s / 10, lost_s / 10)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._signs = 0
        self._hooks: list[Any] = []

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        if trainer.world_size == 1:
            return
        _relieve(trainer.strategy.launcher)
        own = Beat(trainer.global_rank, socket.gethostname(), os.getpid())
        self._board = Board(connect(trainer), trainer.world_size, own, pause_s=5 * self.beat_s)
        trunks = [getattr(network, "model", network) for network in learner.networks.values()]
        self._hooks = [getattr(trunk, "base_model", trunk).register_forward_pre_hook(self._sign) for trunk in trunks]
        self._tell(learner)
        trainer.strategy.barrier()
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, args=(learner,), name="watchdog", daemon=True)
        self._thread.start()

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._leave(learner, "")

    def on_exception(self, trainer: Trainer, learner: Any, exception: BaseException) -> None:
        """A rank that is gone breaks what the others are doing with it: `trainer.lost` says so, where the exception would not."""
        if self._thread is None:
            return
        if isinstance(exception, RuntimeError) and not isinstance(exception, UserError) and (lost := self._missing()):
            trainer.lost = lost  # type: ignore[attr-defined]
            exception.args = (lost,)
        self._leave(learner, " ".join(f"{type(exception).__name__}: {exception}".split())[:500])

    def _leave(self, learner: Any, why: str) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        for hook in self._hooks:
            hook.remove()
        try:
            self._tell(learner, ended=why)
        except RuntimeError:
            if why:
                print("watchdog: nobody is left to hear that this rank ends", file=sys.stderr)

    def _sign(self, *_: Any) -> None:
        self._signs += 1

    def _tell(self, learner: Any, **more: Any) -> None:
        self._board.tell(
            place=learner.timer.progress, signs=self._signs, stage=learner.timer.phase, iteration=learner.iteration + 1, **more
        )

    def _missing(self) -> str | None:
        """Who is gone, if somebody is: that may take a few beats to show."""
        deadline = time.monotonic() + 3 * self.beat_s + 1
        while time.monotonic() < deadline:
            try:
                self._board.listen()
            except RuntimeError:
                return FIRST_IS_GONE
            if found := self._board.lost(self.lost_s):
                return found
            time.sleep(self.beat_s / 4)
        return None

    def _watch(self, learner: Any) -> None:
        """In the thread, as the main one may wait for ever."""
        while not self._stop.wait(self.beat_s):
            try:
                self._tell(learner)
                self._board.listen()
            except RuntimeError:
                self._end(learner, FIRST_IS_GONE)
            if found := self._board.lost(self.lost_s):
                self._end(learner, found)
            if hanging := self._board.hanging(self.timeout_s):
                why, late = hanging
                self._end(learner, why, stacks=self._board.own.rank in late)

    def _end(self, learner: Any, why: str, stacks: bool = False) -> None:
        """Ends this process, whatever its other threads do."""
        rank = self._board.own.rank
        said = f"\nerror: {why}; {GO_ON}\n"
        sys.stderr.write(f"{said}stacks of rank {rank}:\n" if stacks else said)
        sys.stderr.flush()
        if stacks:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        try:
            learner.notify("on_lost_rank", why)
        finally:  # a full disk, and what else may be wrong by now, keeps nobody here
            time.sleep(2 * self.beat_s)  # until the others have seen it too: whoever started them may end all with the first
            os._exit(EX_TEMPFAIL if DeadlineError.__name__ in why else 1)


def _relieve(launcher: Any) -> None:
    """Lightning's own observer kills this process without a word, seconds after a rank that it has started ends: it sees none any more."""
    if started := getattr(launcher, "procs", None):
        launcher.procs = list(started)  # signals still go to them
        started.clear()
