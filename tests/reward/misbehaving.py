"""What a pool must survive: called by name in its workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def act(what: str) -> object:
    if what == "hang":
        while True:
            pass
    if what == "sleep":
        time.sleep(60)
    if what == "exit":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sys_exit":
        sys.exit(3)
    if what == "raise":
        raise LookupError("no such thing")
    if what == "print":
        print('{"ok": "forged"}', flush=True)
    if what == "no_json":
        return object()
    if what == "memory":
        return len(bytearray(2**40))
    if what == "recurse":
        return act(what)
    if what == "modules":
        return [name for name in ("torch", "transformers", "sympy", "numpy") if name in sys.modules]
    if what == "pid":
        return os.getpid()
    return what


def warmed(seconds: object) -> object:
    """Slow where it is given a number."""
    if isinstance(seconds, float):
        time.sleep(seconds)
    return seconds


def deaf(what: str) -> object:
    """Stops the whole process, its reading thread too, soon after its reply."""
    if what == "stop":
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        return what
    return len(what)


def forked(what: str) -> object:
    if what == "fork":
        os.fork()
    return what
