"""A worker process as its parent sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Worker:
    process: subprocess.Popen[bytes]
    input: int
    """File descriptor its calls go to; never waited for, as nobody may read them."""
    output: int
    """File descriptor its replies come from."""
    outgoing: bytearray = field(default_factory=bytearray)
    """Of its call, what has not been taken yet."""
    ready: bool = False
    item: int | None = None
    """Which call it is busy with."""
    calls: int = 0
    """That it has had."""
    deadline: float = 0.0
    """On the monotonic clock, of the call or of the start."""
    unread: bytes = b""
    finalizer: Any = field(default=None)

    def flush(self) -> None:
        """Hand over what it takes now. Raises BrokenPipeError where it is gone."""
        with suppress(BlockingIOError):
            del self.outgoing[: os.write(self.input, self.outgoing[:65536])]

    def receive(self) -> list[dict[str, Any]] | None:
        """The replies that have arrived; None: it is gone."""
        try:
            chunk = os.read(self.output, 65536)
        except OSError:  # closed beneath a thread that still waits as the interpreter ends
            return None
        if not chunk:
            return None
        *lines, self.unread = (self.unread + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        self.finalizer()


def end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner must leave its workers alone
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # what was still buffered has no reader any more
                stream.close()
