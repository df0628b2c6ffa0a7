"""Run a command in a child process, so that code that ends its process is reported."""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Callable

from rlmods.grading.sandbox.confinement import end_with_parent

RECORD_BYTES = 4096


def supervised(action: Callable[[Callable[[str], None]], None], advice: str) -> None:
    """Run `action` in a child process, and exit as it does. It gets a function that records what it
    is about to do; if the process ends before `action` does, by `os._exit`, a crash or a signal,
    the last record is printed with `advice`, and the exit status is 1."""
    memory = mmap.mmap(-1, RECORD_BYTES)
    """Shared with the child: whether `action` has ended (1 byte), and the last record."""
    parent = os.getpid()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        end_with_parent(parent)
        try:
            action(lambda text: _write(memory, text))
        finally:
            memory[0] = 1
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child too, which reports it
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if memory[0]:
        sys.exit(status if status >= 0 else 128 - status)
    end = f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
    record = memory[1:].rstrip(b"\0").decode(errors="replace")
    when = f"while it graded {record}" if record else "before the first response"
    sys.exit(f"error: the process ended with {end} {when}: {advice}")


def _write(memory: mmap.mmap, text: str) -> None:
    memory[1:] = text.encode(errors="replace")[: RECORD_BYTES - 1].ljust(RECORD_BYTES - 1, b"\0")
