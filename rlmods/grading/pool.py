"""Pool of worker processes that can be killed: each call and each batch has a deadline, so that no
call can hang the trainer.

The workers are plain Python processes that communicate over pipes. They use neither fork (torch has
threads) nor `multiprocessing` (which imports the main script again, torch included, and is
forbidden in daemonic processes such as a DataLoader's workers). A worker exits when its parent
does, even in the middle of a call."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rlmods.grading.worker import HEADER

START_TIMEOUT_S = 120.0
"""Time for a worker to start. Exceeding it is an error of the installation, not a slow call."""
CHECK_S = 0.02
"""Seconds between two looks for calls past their deadline."""

Call = tuple[Any, ...]


class WorkerError(RuntimeError):
    """Worker processes do not start."""


class InvalidReplyError(Exception):
    """A worker has sent something that is not a reply."""


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
    statuses = [outcome.status for outcome in outcomes]
    return {"timeouts": statuses.count("timeout"), "errors": statuses.count("error")}


class Worker:
    """A worker process. One thread calls it; another may kill it past the deadline of a call."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.lock = threading.Lock()
        self.deadline = math.inf
        self.is_late = False
        path = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlmods.grading.worker", *target.split(":")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # sets have the same order after a resume
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            # a process group, so that child processes of a call are killed too
            start_new_session=True,
        )

    def wait_until_ready(self, warmup: Any) -> None:
        """Wait for the start and the first call `target(warmup)`, if any. Raises WorkerError."""
        timer = threading.Timer(START_TIMEOUT_S, self.kill)
        timer.start()
        try:
            self.receive()
            if warmup is not None:
                self.send((warmup,))
                reply = self.receive()
                if "error" in reply:
                    raise WorkerError(
                        f"the worker process for {self.target} cannot start: {reply['error']}"
                    )
        except (OSError, EOFError, InvalidReplyError) as error:
            self.kill()
            raise WorkerError(
                f"the worker process for {self.target} ended with code "
                f"{self.process.returncode} before its first call"
            ) from error
        finally:
            timer.cancel()

    def call(self, call: Call, timeout_s: float) -> Outcome:
        """Return the outcome of a call. The process does not survive a timeout."""
        self.deadline = time.monotonic() + timeout_s
        try:
            self.send(call)
            reply = self.receive()
        except (OSError, EOFError):
            self.close()
            late = Outcome("timeout")
            return late if self.is_late else Outcome("error", "the worker process ended")
        except InvalidReplyError as error:
            self.kill()
            return Outcome("error", f"the worker process sent {error}")
        with self.lock:
            self.deadline = math.inf
        if "error" in reply:
            return Outcome("error", reply["error"])
        return Outcome("ok", reply["ok"])

    def send(self, call: Call) -> None:
        payload = pickle.dumps(call)
        assert self.process.stdin is not None
        self.process.stdin.write(HEADER.pack(len(payload)) + payload)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next reply. Raises EOFError if the process has ended, or InvalidReplyError."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidReplyError("a reply that is not JSON") from error
        if not isinstance(reply, dict) or not reply.keys() & {"ok", "error"}:
            raise InvalidReplyError("a reply of unknown form")
        return reply

    def kill_if_late(self) -> None:
        with self.lock:
            if time.monotonic() >= self.deadline:
                self.is_late = True
                self.kill()

    def kill(self) -> None:
        """Kill the process with its child processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # buffered data that can no longer be written
                stream.close()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None


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
        self._workers: dict[int, Worker] = {}
        weakref.finalize(self, _end, self._workers, os.getpid())

    def map(
        self, calls: Sequence[Call], *, timeout_s: float, batch_timeout_s: float
    ) -> list[Outcome]:
        """Return the outcome of `target(*call)` for each call, in order.

        A call that takes longer than `timeout_s`, or has no result after `batch_timeout_s`, is a
        "timeout". One that raises or ends its process is an "error". A worker that was killed or
        has exited is replaced. Raises WorkerError if a worker cannot be started or warmed up."""
        with self._lock:
            slots = range(min(self.workers, len(calls)))
            self._start(slots)
            batch = _Batch(calls, timeout_s, time.monotonic() + batch_timeout_s)
            threads = [
                threading.Thread(target=self._work, args=(slot, batch), daemon=True)
                for slot in slots
            ]
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    while thread.is_alive():
                        thread.join(CHECK_S)
                        for slot in slots:
                            self._workers[slot].kill_if_late()
            except BaseException:  # such as Ctrl-C: nobody waits for the calls in progress
                batch.deadline = 0.0
                self.close()
                for thread in threads:
                    thread.join()
                raise
            if batch.failure is not None:
                raise batch.failure
            return batch.outcomes

    def _start(self, slots: range) -> None:
        """Start the workers that do not run, all at a time."""
        running = {slot for slot, worker in self._workers.items() if worker.is_running}
        new = [self._replace(slot) for slot in slots if slot not in running]
        for worker in new:
            worker.wait_until_ready(self.warmup)

    def _replace(self, slot: int) -> Worker:
        if slot in self._workers:
            self._workers[slot].close()
        worker = Worker(self.target)
        self._workers[slot] = worker
        return worker

    def _work(self, slot: int, batch: _Batch) -> None:
        """Make the calls of a batch with one worker, until there are none."""
        for index in batch.pending:
            if batch.is_over():
                return
            worker = self._workers[slot]
            if not worker.is_running:
                try:
                    worker = self._replace(slot)
                    worker.wait_until_ready(self.warmup)
                except WorkerError as error:
                    batch.failure = error
                    return
            if batch.is_over():
                return
            timeout_s = min(batch.timeout_s, batch.deadline - time.monotonic())
            batch.outcomes[index] = worker.call(batch.calls[index], timeout_s)

    def close(self) -> None:
        """End the workers. The next call starts new ones."""
        _end(self._workers, os.getpid())


class _Batch:
    """The calls of one `Pool.map`."""

    def __init__(self, calls: Sequence[Call], timeout_s: float, deadline: float) -> None:
        self.calls = calls
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.outcomes = [NOT_STARTED] * len(calls)
        self.pending: Iterator[int] = iter(range(len(calls)))
        """Calls that no worker has begun; threads share it."""
        self.failure: WorkerError | None = None

    def is_over(self) -> bool:
        return self.failure is not None or time.monotonic() >= self.deadline


def _end(workers: dict[int, Worker], owner_pid: int) -> None:
    """Kill the workers. Does nothing in a fork of their owner."""
    if os.getpid() == owner_pid:
        for worker in list(workers.values()):
            worker.close()


@cache
def shared_pool(target: str, workers: int, _process_id: int = 0, warmup: Any = None) -> Pool:
    """Return this process's pool of a function and size. Pass `os.getpid()`: a forked child must
    not use its parent's pipes."""
    return Pool(target, workers=workers, warmup=warmup)
