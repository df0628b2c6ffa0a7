"""Threads in which environments reply."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Threads:
    """Up to `count` threads that call functions in the order of `submit`, started when they are
    needed.

    Unlike `ThreadPoolExecutor`, leaving the context waits for no call: calls that have not begun
    are cancelled, and the threads are daemons, so a call that hangs holds up neither an exception,
    nor Ctrl-C, nor the end of the process."""

    def __init__(self, count: int, name: str) -> None:
        self.count, self.name, self.num_threads = count, name, 0
        self._idle = threading.Semaphore(0)
        self._tasks: queue.SimpleQueue[
            tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None
        ] = queue.SimpleQueue()
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        for future in self._futures:
            future.cancel()
        for _ in range(self.num_threads):
            self._tasks.put(None)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call the function in a thread, and return its future."""
        future: Future[Any] = Future()
        self._futures = (
            [other for other in self._futures if not other.done()]
            if len(self._futures) > 4 * self.count
            else self._futures
        )
        self._futures.append(future)
        self._tasks.put((future, function, args))
        if not self._idle.acquire(blocking=False) and self.num_threads < self.count:
            self.num_threads += 1
            threading.Thread(
                target=self._work, name=f"{self.name}_{self.num_threads}", daemon=True
            ).start()
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, args = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args))
                except BaseException as error:  # raised by `Future.result` in the thread that waits
                    future.set_exception(error)
            del task, future, function, args  # an idle thread keeps no episode alive
            self._idle.release()
