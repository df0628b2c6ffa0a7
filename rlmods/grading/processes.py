"""Handle of a worker process in its parent process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

MAX_REPLY_BYTES = 64 * 2**20


class InvalidReplyError(Exception):
    """A worker has sent something that is not a reply."""


@dataclass(slots=True)
class Worker:
    """A worker process, its pipes and its current call."""

    process: subprocess.Popen[bytes]
    input_fd: int
    """File descriptor for calls; non-blocking, as the worker may not read it."""
    output_fd: int
    """File descriptor for replies."""
    outgoing: bytearray = field(default_factory=bytearray)
    """Part of the current call that is not written yet."""
    ready: bool = False
    call_index: int | None = None
    """Index of its current call in the batch."""
    num_calls: int = 0
    """Calls served."""
    deadline: float = 0.0
    """Deadline of the call or of the start, on the monotonic clock."""
    partial_line: bytes = b""
    """Received part of a reply that is not complete."""
    finalizer: Any = field(default=None)

    def flush(self) -> None:
        """Write as much of the call as the pipe takes. Raises BrokenPipeError if the process has
        exited."""
        with suppress(BlockingIOError):
            del self.outgoing[: os.write(self.input_fd, self.outgoing[:65536])]

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the replies that have arrived; None if the process has exited.

        Raises:
            InvalidReplyError: something else has arrived.
        """
        try:
            chunk = os.read(self.output_fd, 65536)
        except OSError:  # closed during the exit of the interpreter while a thread still waits
            return None
        if not chunk:
            return None
        *lines, self.partial_line = (self.partial_line + chunk).split(b"\n")
        if len(self.partial_line) > MAX_REPLY_BYTES:
            raise InvalidReplyError("a reply without end")
        return [_parse(line) for line in lines]

    def is_usable(self) -> bool:
        """Return False if the process has exited, or has sent something, while it had no call."""
        return self.process.poll() is None and not (
            self.ready and select.select([self.output_fd], [], [], 0)[0]
        )

    def kill(self) -> None:
        self.finalizer()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidReplyError("a reply that is not JSON") from error
    if not isinstance(reply, dict) or not (
        "ready" in reply or ("number" in reply and ("ok" in reply or "error" in reply))
    ):
        raise InvalidReplyError("a reply of unknown form")
    return reply


def terminate(process: subprocess.Popen[bytes], owner_pid: int) -> None:
    """Kill a worker with its child processes and close its pipes. Does nothing in a fork of the
    owner."""
    if os.getpid() != owner_pid:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # buffered data that can no longer be written
                stream.close()
