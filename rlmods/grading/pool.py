"""Pool of worker processes that can be killed: each call and each batch has a deadline, so that no
call can hang the trainer.

The workers are plain Python processes that communicate over a socket: `python -m
rlmods.grading.pool DESCRIPTOR MODULE FUNCTION`. They use neither fork (torch has threads) nor
`multiprocessing` (which imports the main script again, torch included, and is forbidden in daemonic
processes such as a DataLoader's workers). A worker exits when its parent does, even in the middle
of a call."""

import importlib
import json
import os
import pickle
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Literal

START_TIMEOUT_S = 120.0
"""Time for a worker to start. Exceeding it is an error of the installation, not a slow call."""
MEMORY_BYTES = 4 * 2**30
"""Limit of a worker's address space. Exceeding it raises MemoryError in that call."""
HEADER = struct.Struct("!I")
"""Length of a pickled call, which follows."""
MAX_WAIT_S = 1e6
"""Longer waits exceed the integers of the system call."""

Call = tuple[Any, ...]


class WorkerError(RuntimeError):
    """Worker processes do not start."""


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
    """A worker process, called by one thread at a time over a socket."""

    def __init__(self, target: str) -> None:
        path = os.pathsep.join(path for path in sys.path if path)
        self.socket, other = socket.socketpair()
        self.replies = self.socket.makefile("rb")
        with other:
            descriptor = other.fileno()
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "rlmods.grading.pool"),
                    *(str(descriptor), *target.split(":")),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                # sets have the same order after a resume
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                # a process group, so that child processes of a call are killed too
                start_new_session=True,
            )

    def start(self, target: str, warmup: object) -> None:
        """Wait for the start and the first call `target(warmup)`, if any. Raises WorkerError."""
        outcome = self.call(None, START_TIMEOUT_S)
        if outcome.status == "ok" and warmup is not None:
            outcome = self.call((warmup,), START_TIMEOUT_S)
        if outcome.status != "ok":
            self.close()
            reason = outcome.value or f"no reply within {START_TIMEOUT_S:g} s"
            raise WorkerError(f"the worker process for {target} cannot start: {reason}")

    def call(self, call: Call | None, timeout_s: float) -> Outcome:
        """Return the outcome of a call, or of the start for None. The process does not survive a
        timeout."""
        deadline = time.monotonic() + timeout_s
        try:
            if call is not None:
                payload = pickle.dumps(call)
                self._limit(deadline)
                self.socket.sendall(HEADER.pack(len(payload)) + payload)
            return self.receive(deadline)
        except (OSError, ValueError) as error:  # ValueError: another thread has closed the socket
            self.close()
            is_late = isinstance(error, TimeoutError)
            return Outcome("timeout") if is_late else Outcome("error", str(error))

    def receive(self, deadline: float) -> Outcome:
        """Return the next reply. Raises OSError if the process has ended or sent something else."""
        self._limit(deadline)
        line = self.replies.readline()
        if not line.endswith(b"\n"):
            raise OSError("the worker process ended")
        try:
            is_ok, value = json.loads(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise OSError("the worker process sent something that is not a reply") from error
        return Outcome("ok" if is_ok is True else "error", value)

    def _limit(self, deadline: float) -> None:
        """Let the next step on the socket raise TimeoutError at the deadline."""
        self.socket.settimeout(min(MAX_WAIT_S, max(1e-3, deadline - time.monotonic())))

    def close(self) -> None:
        """Kill the process with its child processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.replies.close()
        self.socket.close()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None


class Pool:
    """Calls `target`, given as "module:function", in `workers` processes, which are started at the
    first call. Thread-safe.

    With `warmup`, each process first calls `target(warmup)`, without the deadline of a call, for
    example to import packages."""

    def __init__(self, target: str, *, workers: int, warmup: object = None) -> None:
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
        outcomes = [NOT_STARTED] * len(calls)
        pending = iter(range(len(calls)))  # threads share it
        deadline = time.monotonic() + batch_timeout_s
        failures: list[WorkerError] = []

        def work(slot: int) -> None:
            for index in pending:
                if failures or time.monotonic() >= deadline:
                    return
                try:
                    worker = self._running_worker(slot)
                except WorkerError as error:
                    failures.append(error)
                    return
                remaining_s = deadline - time.monotonic()
                if remaining_s > 0:
                    outcomes[index] = worker.call(calls[index], min(timeout_s, remaining_s))

        slots = range(min(self.workers, len(calls)))
        threads = [threading.Thread(target=work, args=(slot,), daemon=True) for slot in slots]
        with self._lock:
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException:  # such as Ctrl-C: nobody waits for the calls in progress
                deadline = 0.0
                self.close()
                for thread in threads:
                    thread.join()
                raise
        if failures:
            raise failures[0]
        return outcomes

    def _running_worker(self, slot: int) -> Worker:
        worker = self._workers.get(slot)
        if worker is not None and worker.is_running:
            return worker
        if worker is not None:
            worker.close()
        self._workers[slot] = Worker(self.target)
        self._workers[slot].start(self.target, self.warmup)
        return self._workers[slot]

    def close(self) -> None:
        """End the workers. The next call starts new ones."""
        _end(self._workers, os.getpid())


def _end(workers: dict[int, Worker], owner_pid: int) -> None:
    """Kill the workers. Does nothing in a fork of their owner."""
    if os.getpid() == owner_pid:
        for worker in list(workers.values()):
            worker.close()


def shared_pool(target: str, workers: int, warmup: object = None) -> Pool:
    """Return this process's pool of a function and size."""
    return _pool(os.getpid(), target, workers, warmup)


@cache
def _pool(process_id: int, target: str, workers: int, warmup: object) -> Pool:
    """Return a process's pool: a forked child must not use its parent's sockets."""
    return Pool(target, workers=workers, warmup=warmup)


def main(descriptor: str, module: str, function: str) -> None:
    """Answer calls from a socket with JSON lines until it is closed."""
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)  # else a process that the function leaves keeps it open
    os.dup2(2, 1)  # output of the function is no output of the trainer
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [x for x in (soft, hard, MEMORY_BYTES) if x != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    target = getattr(importlib.import_module(module), function)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stream = connection.makefile("rb")
    threading.Thread(target=_read_calls, args=(stream, calls), daemon=True).start()
    reply = json.dumps([True, "ready"])
    while True:
        connection.sendall(reply.encode() + b"\n")
        reply = _reply(target, calls.get())


def _read_calls(stream: BinaryIO, calls: queue.SimpleQueue[bytes]) -> None:
    """Read calls in a thread of its own, so that this process exits with its parent even in the
    middle of a call."""
    while True:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)
        calls.put(stream.read(HEADER.unpack(header)[0]))


def _reply(target: Callable[..., Any], call: bytes) -> str:
    try:
        return json.dumps([True, target(*pickle.loads(call))])
    except (Exception, SystemExit) as error:  # the parent counts it
        return json.dumps([False, f"{type(error).__name__}: {error}"[:500]])


if __name__ == "__main__":
    main(*sys.argv[1:])
