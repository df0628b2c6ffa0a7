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
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # so that output printed by the function is not read as a reply
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > MEMORY_BYTES:
        resource.setrlimit(
            resource.RLIMIT_AS,
            (MEMORY_BYTES if soft == resource.RLIM_INFINITY else min(soft, MEMORY_BYTES), hard),
        )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    target = getattr(importlib.import_module(module), function)
    worker_pid = os.getpid()
    calls: queue.SimpleQueue[tuple[int, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    _reply(replies, {"ready": True})
    while True:
        number, call = calls.get()
        result = _run(target, call)
        if os.getpid() != worker_pid:  # a fork made by the call must not reply
            os._exit(0)
        _reply(replies, {"number": number, **result})


def _read_calls(stream: BinaryIO, calls: queue.SimpleQueue[tuple[int, tuple[Any, ...]]]) -> None:
    """Read calls in a thread of its own, so that this process exits with its parent even in the
    middle of a call."""
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        calls.put(pickle.loads(stream.read(HEADER.unpack(header)[0])))
    os._exit(0)


def _run(target: Callable[..., Any], call: tuple[Any, ...]) -> dict[str, Any]:
    try:
        result = {"ok": target(*call)}
        json.dumps(result)
    except (Exception, SystemExit) as error:  # the parent counts it
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return result


def _reply(stream: Any, reply: dict[str, Any]) -> None:
    stream.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
