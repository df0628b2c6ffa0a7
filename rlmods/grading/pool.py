"""Pool of worker processes that can be killed: each call and each batch has a deadline, so that no
call can hang the trainer.

The workers are plain Python processes that communicate over pipes. They use neither fork (torch has
threads) nor `multiprocessing` (which imports the main script again, torch included, and is
forbidden in daemonic processes such as a DataLoader's workers). A worker exits when its parent
does, even in the middle of a call."""

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

from rlmods.grading.processes import InvalidReplyError, Worker, terminate
from rlmods.grading.worker import HEADER

START_TIMEOUT_S = 120.0
"""Time for a worker to start. Exceeding it is an error of the installation, not a slow call."""
MAX_CALLS_PER_WORKER = 20_000
"""Calls after which a worker is replaced, so that its leaks do not add up."""
MAX_CONSECUTIVE_EXITS = 50
"""Workers in a row that exited in the middle of a call, after which no more are started."""


class WorkerError(RuntimeError):
    """Worker processes do not start, or exit during every call."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one call."""

    status: Literal["ok", "timeout", "error"]
    value: Any = None
    """Return value of the function, a JSON value; for an error, the exception as text."""


NOT_STARTED = Outcome("timeout", "not started")
"""Outcome of a call that no worker had begun when the time of the batch was up."""


def failure_counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return the numbers of `timeouts` and `errors`, by their names in `Scores.counts`."""
    return {
        f"{status}s": sum(outcome.status == status for outcome in outcomes)
        for status in ("timeout", "error")
    }


class Pool:
    """Calls `target`, given as "module:function", in `workers` processes, which are started at the
    first call. Thread-safe.

    With `warmup`, each process first calls `target(warmup)`, without the deadline of a call, for
    example to import packages."""

    def __init__(self, target: str, *, workers: int, warmup: Any = None) -> None:
        self.target = target
        self.workers = workers
        self.warmup = warmup
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self.consecutive_exits = 0
        """Workers in a row that exited in the middle of a call."""

    def map(
        self, calls: Sequence[tuple[Any, ...]], *, timeout_s: float, batch_timeout_s: float
    ) -> list[Outcome]:
        """Return the outcome of `target(*call)` for each call, in order.

        A call that takes longer than `timeout_s`, or has no result after `batch_timeout_s`, is a
        "timeout". One that raises or ends its process is an "error". A worker that was killed or
        has exited is replaced. Raises WorkerError if no worker can be started or warmed up, or if
        `MAX_CONSECUTIVE_EXITS` workers in a row exited in the middle of a call."""
        with self._lock:
            return _Batch(self, calls, timeout_s, time.monotonic() + batch_timeout_s).run()

    def close(self) -> None:
        """End the workers. The next call starts new ones."""
        with self._lock:
            while self._idle:
                self._idle.pop().kill()

    def acquire(self) -> Worker:
        """Return an idle worker that still runs, or a new one."""
        while self._idle:
            if (worker := self._idle.pop()).is_usable():
                return worker
            worker.kill()
        return self._start()

    def release(self, worker: Worker) -> None:
        self._idle.append(worker)

    def _start(self) -> Worker:
        module, _, function = self.target.partition(":")
        path = os.pathsep.join(path for path in sys.path if path)
        # sets have the same order after a resume
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            [sys.executable, "-m", "rlmods.grading.worker", module, function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # a process group, so that child processes of a call are killed too
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        worker = Worker(process, process.stdin.fileno(), process.stdout.fileno())
        worker.finalizer = weakref.finalize(self, terminate, process, os.getpid())
        return worker


@cache
def shared_pool(target: str, workers: int, _process_id: int = 0, warmup: Any = None) -> Pool:
    """Return this process's pool of a function and size. Pass `os.getpid()`: a forked child must
    not use its parent's pipes."""
    return Pool(target, workers=workers, warmup=warmup)


class _Batch:
    """One `Pool.map`: assigns calls to workers, collects replies, and kills workers past their
    deadline."""

    def __init__(
        self, pool: Pool, calls: Sequence[tuple[Any, ...]], timeout_s: float, deadline: float
    ) -> None:
        self.pool = pool
        self.calls = calls
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.outcomes: list[Outcome | None] = [None] * len(calls)
        self.next_call = 0
        self.active: dict[int, Worker] = {}
        self.selector = selectors.DefaultSelector()

    def run(self) -> list[Outcome]:
        try:
            while self.num_pending() and time.monotonic() < self.deadline:
                while len(self.active) < min(self.pool.workers, self.num_pending()):
                    self.add(self.pool.acquire())
                for key, _ in self.selector.select(self.seconds_to_deadline()):
                    worker = key.data
                    if worker.process.pid in self.active:
                        self.read(worker) if key.fd == worker.output_fd else self.write(worker)
                self.kill_late()
        finally:
            for worker in list(self.active.values()):
                if worker.call_index is None:
                    self.release(worker)
                else:
                    self.kill(worker)
            self.selector.close()
        return [
            outcome or (Outcome("timeout") if i < self.next_call else NOT_STARTED)
            for i, outcome in enumerate(self.outcomes)
        ]

    def num_pending(self) -> int:
        """Return the number of calls without an outcome: not yet assigned, or in progress."""
        return (
            len(self.calls)
            - self.next_call
            + sum(worker.call_index is not None for worker in self.active.values())
        )

    def add(self, worker: Worker) -> None:
        self.active[worker.process.pid] = worker
        self.selector.register(worker.output_fd, selectors.EVENT_READ, worker)
        if worker.ready:
            self.assign(worker)
        else:
            worker.deadline = time.monotonic() + START_TIMEOUT_S

    def assign(self, worker: Worker) -> None:
        """Assign the next call to `worker`, or return it to the pool if there is none."""
        if self.next_call == len(self.calls):
            worker.call_index = None
            self.release(worker)
            return
        worker.call_index, self.next_call, worker.num_calls = (
            self.next_call,
            self.next_call + 1,
            worker.num_calls + 1,
        )
        worker.deadline = time.monotonic() + self.timeout_s
        self.send(worker, self.calls[worker.call_index])

    def send(self, worker: Worker, call: tuple[Any, ...]) -> None:
        """Send a call with a number, which its reply must repeat."""
        payload = pickle.dumps((worker.num_calls, call))
        worker.outgoing = bytearray(HEADER.pack(len(payload)) + payload)
        self.selector.register(worker.input_fd, selectors.EVENT_WRITE, worker)
        self.write(worker)

    def write(self, worker: Worker) -> None:
        try:
            worker.flush()
        except BrokenPipeError:
            self.handle_exit(worker)
        else:
            if not worker.outgoing:
                self.selector.unregister(worker.input_fd)

    def read(self, worker: Worker) -> None:
        try:
            replies = worker.receive()
        except InvalidReplyError as error:
            if not worker.ready:
                raise WorkerError(
                    f"the worker process for {self.pool.target} sent {error} before its first call"
                ) from error
            self.fail(worker, Outcome("error", f"the worker process sent {error}"))
            return
        if replies is None:
            if not worker.ready:
                code = worker.process.wait()
                raise WorkerError(
                    f"the worker process for {self.pool.target} ended with code {code} before "
                    "its first call"
                )
            self.handle_exit(worker)
            return
        for reply in replies:
            if "ready" in reply and self.pool.warmup is not None:
                worker.deadline = time.monotonic() + START_TIMEOUT_S
                self.send(worker, (self.pool.warmup,))
                continue
            # from a thread or fork that an earlier call left behind
            if "ready" not in reply and reply["number"] != worker.num_calls:
                self.fail(
                    worker,
                    Outcome("error", "the worker process sent a reply that belongs to no call"),
                )
                return
            if not worker.ready:
                if "error" in reply:
                    raise WorkerError(
                        f"the worker process for {self.pool.target} cannot start: {reply['error']}"
                    )
                worker.ready = True
            elif worker.call_index is not None:
                self.pool.consecutive_exits = 0
                self.outcomes[worker.call_index] = (
                    Outcome("error", reply["error"])
                    if "error" in reply
                    else Outcome("ok", reply["ok"])
                )
            self.assign(worker)
            if worker.process.pid not in self.active:
                return

    def kill_late(self) -> None:
        for worker in [
            worker for worker in self.active.values() if time.monotonic() >= worker.deadline
        ]:
            if not worker.ready:
                raise WorkerError(
                    f"no worker process for {self.pool.target} has started within "
                    f"{START_TIMEOUT_S:.0f} s"
                )
            self.fail(worker, Outcome("timeout"))

    def handle_exit(self, worker: Worker) -> None:
        """Record an error for the call of a worker that has exited. Raises WorkerError if too many
        in a row do."""
        self.fail(worker, Outcome("error", "the worker process ended"))
        self.pool.consecutive_exits += 1
        if self.pool.consecutive_exits >= MAX_CONSECUTIVE_EXITS:
            code, count = worker.process.returncode, self.pool.consecutive_exits
            reason = (
                "killed, for example for lack of memory"
                if code == -signal.SIGKILL
                else f"with code {code}"
            )
            raise WorkerError(
                f"{count} worker processes for {self.pool.target} in a row ended in the "
                f"middle of a call ({reason})"
            )

    def fail(self, worker: Worker, outcome: Outcome) -> None:
        if worker.call_index is not None:
            self.outcomes[worker.call_index] = outcome
        self.kill(worker)

    def kill(self, worker: Worker) -> None:
        self.remove(worker)
        worker.kill()

    def release(self, worker: Worker) -> None:
        self.remove(worker)
        if worker.num_calls < MAX_CALLS_PER_WORKER:
            self.pool.release(worker)
        else:
            worker.kill()

    def remove(self, worker: Worker) -> None:
        self.selector.unregister(worker.output_fd)
        with suppress(KeyError):
            self.selector.unregister(worker.input_fd)
        del self.active[worker.process.pid]

    def seconds_to_deadline(self) -> float:
        return max(
            0.0,
            min([self.deadline, *(worker.deadline for worker in self.active.values())])
            - time.monotonic(),
        )
