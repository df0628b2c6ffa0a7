"""Watchdog: ends all ranks, with an error that names the cause, when one of them dies or hangs."""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import Callback, Trainer

from rlmods import activity
from rlmods.callbacks.heartbeat import Heartbeat, HeartbeatStore, LocalStore, connect
from rlmods.callbacks.stop import EX_TEMPFAIL, DeadlineError
from rlmods.errors import UserError

SILENCE = Path(__file__).with_name("silence.py")
RESUME_HINT = "resume=auto continues from the latest checkpoint"
DEBUGGERS = ("bdb", "pdb", "pydevd")
"""Modules whose functions run in the main thread while a debugger waits for a command."""
STORE_IS_GONE = "rank 0 is gone: its store does not answer"


class Watchdog(Callback):
    """End all ranks if one dies or hangs: a thread on each rank publishes a heartbeat once a
    second, over a connection of its own.

    A rank is lost if its process has ended or it has sent no heartbeat for `lost_s`. If no rank
    makes progress for `timeout_s`, the ranks with the least progress hang. Then every rank prints
    the lost or hanging ranks and their phases, a hanging rank dumps its stacks, and all ranks exit.
    A single rank is watched for progress only. A debugger that waits in the main thread is
    progress.

    Native code that never gives up the interpreter, such as a regular expression without end, stops
    this thread too: then a process beside each rank (`rlmods.callbacks.silence`) ends it, `lost_s`
    after `timeout_s`. Time in which the rank is suspended does not count."""

    def __init__(self, timeout_s: float = 1800.0, lost_s: float = 60.0) -> None:
        """
        Args:
            timeout_s: seconds without a new phase, microbatch, forward pass, or reply of a judge,
            teacher or worker process on any rank;
                longer than the slowest call of a reward in this process.
            lost_s: seconds without a heartbeat until a rank counts as lost (on another machine, or
            suspended).
        """
        for name, value in (("timeout_s", timeout_s), ("lost_s", lost_s)):
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive")
        self.timeout_s, self.lost_s, self.interval_s = (
            timeout_s,
            lost_s,
            min(1.0, timeout_s / 10, lost_s / 10),
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._forward_count = 0
        self._hooks: list[Any] = []
        self._silence: subprocess.Popen[bytes] | None = None

    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        own = Heartbeat(trainer.global_rank, socket.gethostname(), os.getpid())
        store: Any = LocalStore()
        if trainer.world_size > 1:
            _disable_launcher_monitor(trainer.strategy.launcher)
            store = connect(trainer)
        self._store = HeartbeatStore(
            store, trainer.world_size, own, max_pause_s=5 * self.interval_s
        )
        trunks = [getattr(network, "model", network) for network in learner.networks.values()]
        self._hooks = [
            getattr(trunk, "base_model", trunk).register_forward_pre_hook(self._count_forward)
            for trunk in trunks
        ]
        self._publish(learner)
        trainer.strategy.barrier()
        self._stop.clear()
        self._start_silence()
        self._thread = threading.Thread(
            target=self._watch, args=(learner,), name="watchdog", daemon=True
        )
        self._thread.start()

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._finish(learner, "")

    def on_exception(self, trainer: Trainer, learner: Any, exception: BaseException) -> None:
        """If a collective failed because of a lost rank, replace its error by one that names the
        rank, and set `trainer.lost` to it."""
        if self._thread is None:
            return
        if (
            isinstance(exception, RuntimeError)
            and not isinstance(exception, UserError)
            and (lost := self._wait_for_lost())
        ):
            trainer.lost = lost  # type: ignore[attr-defined]
            exception.args = (lost,)
        self._finish(learner, " ".join(f"{type(exception).__name__}: {exception}".split())[:500])

    def _finish(self, learner: Any, exit_reason: str) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._end_silence()
        self._thread = None
        for hook in self._hooks:
            hook.remove()
        try:
            self._publish(learner, exit_reason=exit_reason)
        except RuntimeError:
            if exit_reason:
                print(
                    "watchdog: the failure of this rank cannot be published, because the "
                    "store is gone",
                    file=sys.stderr,
                )

    def _count_forward(self, *_: Any) -> None:
        self._forward_count += 1

    def _publish(self, learner: Any, **changes: Any) -> None:
        state = {
            "progress": learner.timer.progress,
            "phase": learner.timer.phase,
            "iteration": learner.iteration + 1,
        }
        self._store.publish(
            forward_count=self._forward_count + activity.num_replies(), **state, **changes
        )

    def _start_silence(self) -> None:
        # None in a program without a console
        if not faulthandler.is_enabled() and sys.__stderr__ is not None:
            faulthandler.enable(file=sys.__stderr__)
        arguments = (os.getpid(), self.timeout_s + self.lost_s, self.interval_s, RESUME_HINT)
        command = [sys.executable, "-I", "-S", str(SILENCE), *map(str, arguments)]
        self._silence = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert self._silence.stdin is not None
        os.set_blocking(self._silence.stdin.fileno(), False)
        self._break_silence()

    def _break_silence(self) -> None:
        """Tell the process beside this one that the interpreter runs, and in which phase."""
        if self._silence is None or self._silence.stdin is None:
            return
        own = self._store.own
        try:
            os.write(self._silence.stdin.fileno(), f"rank {own.rank}, {own.location}\n".encode())
        except BlockingIOError:  # it is suspended
            pass
        except BrokenPipeError:
            print(
                "watchdog: the process that ends hanging native code is gone; such code is "
                "no longer ended",
                file=sys.stderr,
            )
            self._end_silence()

    def _end_silence(self) -> None:
        if self._silence is not None and self._silence.stdin is not None:
            self._silence.stdin.close()
            self._silence.wait()
        self._silence = None

    def _wait_for_lost(self) -> str | None:
        """Return the message for a lost rank, which may take a few heartbeats to show; None if
        there is none."""
        deadline = time.monotonic() + 3 * self.interval_s + 1
        while time.monotonic() < deadline:
            try:
                self._store.poll()
            except RuntimeError:
                return STORE_IS_GONE
            if lost := self._store.find_lost(self.lost_s):
                return lost
            time.sleep(self.interval_s / 4)
        return None

    def _watch(self, learner: Any) -> None:
        """Loop of the thread; the main thread may be blocked in a collective."""
        while not self._stop.wait(self.interval_s):
            self._forward_count += debugger_is_active()
            try:
                self._publish(learner)
                self._store.poll()
            except RuntimeError:
                self._exit(learner, STORE_IS_GONE)
            self._break_silence()
            if lost := self._store.find_lost(self.lost_s):
                self._exit(learner, lost)
            if hanging := self._store.find_hanging(self.timeout_s):
                message, late = hanging
                self._exit(learner, message, dump_stacks=self._store.own.rank in late)

    def _exit(self, learner: Any, message: str, dump_stacks: bool = False) -> None:
        """End this process, whatever its other threads do."""
        rank = self._store.own.rank
        error = f"\nerror: {message}; {RESUME_HINT}\n"
        sys.stderr.write(f"{error}stacks of rank {rank}:\n" if dump_stacks else error)
        sys.stderr.flush()
        if dump_stacks:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        try:
            learner.notify("on_lost_rank", message)
        finally:  # exit even if a callback fails, e.g. on a full disk
            # until the other ranks have detected it too: the launcher may end all after the first
            time.sleep(2 * self.interval_s)
            os._exit(EX_TEMPFAIL if DeadlineError.__name__ in message else 1)


def debugger_is_active() -> bool:
    """Return True if a debugger traces the main thread, or waits for a command in it."""
    monitoring = getattr(sys, "monitoring", None)  # of Python 3.12
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_trace is not None or frame.f_globals.get("__name__") in DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def _disable_launcher_monitor(launcher: Any) -> None:
    """Hide the started ranks from Lightning's monitor, which kills this process without a message
    seconds after one of them ends."""
    if processes := getattr(launcher, "procs", None):
        launcher.procs = list(processes)  # signals are still forwarded to them
        processes.clear()
