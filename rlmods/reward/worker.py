"""The process at the other end of `pool.Pool`: `python -m rlmods.reward.worker MODULE FUNCTION`."""

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
"""Address space. What asks for more gets a MemoryError, which is an error of that call alone."""


def main(module: str, function: str) -> None:
    """Answer calls from stdin with JSON lines on stdout until stdin ends."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed by the function must not be taken for a reply
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES if soft == resource.RLIM_INFINITY else min(soft, MEMORY_BYTES), hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    target = getattr(importlib.import_module(module), function)
    own = os.getpid()
    calls: queue.SimpleQueue[tuple[int, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, calls), daemon=True).start()
    _reply(replies, {"ready": True})
    while True:
        number, call = calls.get()
        answer = _answer(target, call)
        if os.getpid() != own:  # a fork that the call has made has nothing to say
            os._exit(0)
        _reply(replies, {"number": number, **answer})


def _listen(stream: BinaryIO, calls: queue.SimpleQueue[tuple[int, tuple[Any, ...]]]) -> None:
    """Reads beside the work, so that the end of the parent ends this process even in the middle of a call."""
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        calls.put(pickle.loads(stream.read(HEADER.unpack(header)[0])))
    os._exit(0)


def _answer(target: Callable[..., Any], call: tuple[Any, ...]) -> dict[str, Any]:
    try:
        answer = {"ok": target(*call)}
        json.dumps(answer)
    except (Exception, SystemExit) as error:  # whatever it is, the parent counts it
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return answer


def _reply(stream: Any, reply: dict[str, Any]) -> None:
    stream.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
