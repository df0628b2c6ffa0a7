"""Entry point of the worker processes of `pool.Pool`: `python -m rlmods.grading.worker MODULE
FUNCTION`."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import queue
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

HEADER = struct.Struct("!I")
MEMORY_BYTES = 4 * 2**30
"""Limit of the address space. Exceeding it raises MemoryError in that call."""


def main(module: str, function: str) -> None:
    """Answer calls from stdin with JSON lines on stdout until stdin ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that output printed by the function is not read as a reply
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MEMORY_BYTES)
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    target = getattr(importlib.import_module(module), function)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    reply: dict[str, Any] = {"ok": "ready"}
    while True:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
        reply = _run(target, calls.get())


def _read_calls(stream: BinaryIO, calls: queue.SimpleQueue[bytes]) -> None:
    """Read calls in a thread of its own, so that this process exits with its parent even in the
    middle of a call."""
    while True:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)
        calls.put(stream.read(HEADER.unpack(header)[0]))


def _run(target: Callable[..., Any], call: bytes) -> dict[str, Any]:
    try:
        result = {"ok": target(*pickle.loads(call))}
        json.dumps(result)
    except (Exception, SystemExit) as error:  # the parent counts it
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
