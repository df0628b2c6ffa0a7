"""Functions called in processes that can be killed: each call has a deadline and so has the batch. Nothing called can hang the trainer.

The workers are plain Python processes that talk over pipes. Neither fork (torch has threads) nor `multiprocessing` (which imports the main
script again, torch included, and is forbidden in daemonic processes such as a DataLoader's workers) is involved. A worker whose parent is
gone ends by itself, in the middle of a call if need be.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rlmods.reward.processes import Worker, end
from rlmods.reward.worker import HEADER

START_TIMEOUT_S = 120.0
"""A worker that is not up by then is an error of the installation, not a slow answer."""
RECYCLED_AFTER = 20_000
"""Calls, after which a worker makes way for a new one: whatever it leaks ends with it."""
DEATHS = 50
"""Workers in a row that ended by themselves in the middle of a call: no more are started then."""


class WorkerError(RuntimeError):
    """Worker processes do not start, or do nothing but end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call."""

    status: Literal["ok", "timeout", "error"]
    value: Any = None
    """What the function returned: a JSON value. Of an error: what was raised, as text."""


def failures(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many came to nothing, as `Scores.counts` names them: `timeouts` and `errors`."""
    return {f"{status}s": sum(outcome.status == status for outcome in outcomes) for status in ("timeout", "error")}


class Pool:
    """Calls `target`, "module:function", in `workers` processes, started at the first call. Safe to use from any thread.

    With `warm`, each process calls `target(warm)` before it is ready, as long as that may take: imports count against no call's deadline.
    """

    def __init__(self, target: str, *, workers: int, warm: Any = None) -> None:
        self.target = target
        self.workers = workers
        self.warm = warm
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self.deaths = 0
        """In a row, of workers that ended by themselves."""

    def map(self, calls: Sequence[tuple[Any, ...]], *, timeout_s: float, batch_timeout_s: float) -> list[Outcome]:
        """`target(*call)` for each call, in order.

        A call that takes longer than `timeout_s` is a "timeout", and so is one without an answer after `batch_timeout_s`. One that raises
        or ends its process is an "error". Its worker is replaced. Raises WorkerError if no worker can be started or warmed, or `DEATHS` in
        a row ended in the middle of a call.
        """
        with self._lock:
            return _Batch(self, calls, timeout_s, time.monotonic() + batch_timeout_s).run()

    def close(self) -> None:
        """End the workers. The next call starts new ones."""
        with self._lock:
            while self._idle:
                self._idle.pop().kill()

    def take(self) -> Worker:
        return self._idle.pop() if self._idle else self._start()

    def give_back(self, worker: Worker) -> None:
        self._idle.append(worker)

    def _start(self) -> Worker:
        module, _, function = self.target.partition(":")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "rlmods.reward.worker", module, function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that what a call has started ends with it
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        worker = Worker(process, process.stdin.fileno(), process.stdout.fileno())
        worker.finalizer = weakref.finalize(self, end, process, os.getpid())
        return worker


@cache
def shared(target: str, workers: int, _process: int = 0, warm: Any = None) -> Pool:
    """One pool per function and size in this process; pass `os.getpid()`, as a forked child must not speak into its parent's pipes."""
    return Pool(target, workers=workers, warm=warm)


class _Batch:
    """One `map`: hands out calls, collects replies, and kills what is late."""

    def __init__(self, pool: Pool, calls: Sequence[tuple[Any, ...]], timeout_s: float, deadline: float) -> None:
        self.pool = pool
        self.calls = calls
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.outcomes: list[Outcome | None] = [None] * len(calls)
        self.next = 0
        self.busy: dict[int, Worker] = {}
        self.selector = selectors.DefaultSelector()

    def run(self) -> list[Outcome]:
        try:
            while self.outstanding() and time.monotonic() < self.deadline:
                while len(self.busy) < min(self.pool.workers, self.outstanding()):
                    self.hire(self.pool.take())
                for key, _ in self.selector.select(self.patience()):
                    worker = key.data
                    if worker.process.pid in self.busy:
                        self.hear(worker) if key.fd == worker.output else self.push(worker)
                self.kill_late()
        finally:
            for worker in list(self.busy.values()):
                if worker.item is None:
                    self.release(worker)
                else:
                    self.dismiss(worker)
            self.selector.close()
        return [outcome or Outcome("timeout") for outcome in self.outcomes]

    def outstanding(self) -> int:
        """Calls without an outcome: not yet given out, or being worked on."""
        return len(self.calls) - self.next + sum(worker.item is not None for worker in self.busy.values())

    def hire(self, worker: Worker) -> None:
        self.busy[worker.process.pid] = worker
        self.selector.register(worker.output, selectors.EVENT_READ, worker)
        if worker.ready:
            self.assign(worker)
        else:
            worker.deadline = time.monotonic() + START_TIMEOUT_S

    def assign(self, worker: Worker) -> None:
        """The next call to `worker`, or back to the pool with it."""
        if self.next == len(self.calls):
            worker.item = None
            self.release(worker)
            return
        worker.item, self.next, worker.calls = self.next, self.next + 1, worker.calls + 1
        worker.deadline = time.monotonic() + self.timeout_s
        self.tell(worker, self.calls[worker.item])

    def tell(self, worker: Worker, call: tuple[Any, ...]) -> None:
        """A call under the number that its reply must have."""
        payload = pickle.dumps((worker.calls, call))
        worker.outgoing = bytearray(HEADER.pack(len(payload)) + payload)
        self.selector.register(worker.input, selectors.EVENT_WRITE, worker)
        self.push(worker)

    def push(self, worker: Worker) -> None:
        try:
            worker.flush()
        except BrokenPipeError:
            self.bury(worker)
        else:
            if not worker.outgoing:
                self.selector.unregister(worker.input)

    def hear(self, worker: Worker) -> None:
        replies = worker.receive()
        if replies is None:
            if not worker.ready:
                code = worker.process.wait()
                raise WorkerError(f"the worker process for {self.pool.target} ended with code {code} before its first call")
            self.bury(worker)
            return
        for reply in replies:
            if "ready" in reply and self.pool.warm is not None:
                worker.deadline = time.monotonic() + START_TIMEOUT_S
                self.tell(worker, (self.pool.warm,))
                continue
            if "ready" not in reply and reply["number"] != worker.calls:  # of a thread or a fork that a call left behind
                self.fail(worker, Outcome("error", "the worker process replied out of turn"))
                return
            if not worker.ready:
                if "error" in reply:
                    raise WorkerError(f"the worker process for {self.pool.target} cannot start: {reply['error']}")
                worker.ready = True
            elif worker.item is not None:
                self.pool.deaths = 0
                self.outcomes[worker.item] = Outcome("error", reply["error"]) if "error" in reply else Outcome("ok", reply["ok"])
            self.assign(worker)
            if worker.process.pid not in self.busy:
                return

    def kill_late(self) -> None:
        for worker in [worker for worker in self.busy.values() if time.monotonic() >= worker.deadline]:
            if not worker.ready:
                raise WorkerError(f"no worker process for {self.pool.target} within {START_TIMEOUT_S:.0f} s")
            self.fail(worker, Outcome("timeout"))

    def bury(self, worker: Worker) -> None:
        """It ended by itself: the fault of its call, unless that is all they ever do."""
        self.fail(worker, Outcome("error", "the worker process ended"))
        self.pool.deaths += 1
        if self.pool.deaths >= DEATHS:
            code = worker.process.returncode
            why = "killed, as where memory runs out" if code == -signal.SIGKILL else f"with code {code}"
            raise WorkerError(f"{self.pool.deaths} worker processes for {self.pool.target} in a row ended in the middle of a call ({why})")

    def fail(self, worker: Worker, outcome: Outcome) -> None:
        if worker.item is not None:
            self.outcomes[worker.item] = outcome
        self.dismiss(worker)

    def dismiss(self, worker: Worker) -> None:
        self.forget(worker)
        worker.kill()

    def release(self, worker: Worker) -> None:
        self.forget(worker)
        if worker.calls < RECYCLED_AFTER:
            self.pool.give_back(worker)
        else:
            worker.kill()

    def forget(self, worker: Worker) -> None:
        self.selector.unregister(worker.output)
        with suppress(KeyError):
            self.selector.unregister(worker.input)
        del self.busy[worker.process.pid]

    def patience(self) -> float:
        return max(0.0, min([self.deadline, *(worker.deadline for worker in self.busy.values())]) - time.monotonic())
