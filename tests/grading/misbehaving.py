"""Functions that hang, crash and misuse their process, called by name in the workers of a pool."""

import os
import signal
import sys
import threading
import time


def act(action: str) -> object:
    if action == "hang":
        while True:
            pass
    if action == "sleep":
        time.sleep(60)
    if action == "exit":
        os._exit(3)
    if action == "sys_exit":
        sys.exit(3)
    if action == "raise":
        raise LookupError("no such thing")
    if action == "print":
        print('{"ok": "forged"}', flush=True)
    if action == "no_json":
        return object()
    if action == "memory":
        return len(bytearray(2**40))
    if action == "recurse":
        return act(action)
    if action == "modules":
        return [name for name in ("torch", "transformers", "sympy", "numpy") if name in sys.modules]
    if action == "pid":
        return os.getpid()
    return action


def slow_warmup(value: object) -> object:
    """Sleep for `value` seconds if it is a float."""
    if isinstance(value, float):
        time.sleep(value)
    return value


def stop_reading(action: str) -> object:
    """Stop the process, with its reading thread, soon after the reply."""
    if action == "stop":
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        return action
    return len(action)


def unconfined(job: object) -> object:
    """A worker on a machine that refuses to confine code."""
    from rlmods.grading.sandbox import run, tests

    run.BOOT = "import sys; sys.exit('Landlock: Operation not permitted')"
    return tests.work(job)  # type: ignore[arg-type]


def garbage(action: str) -> object:
    """Write something to the reply channel that is not a reply."""
    connection = sys._getframe(2).f_locals["connection"]  # of rlmods.grading.pool.main
    lines = {
        "text": b"no reply\n",
        "list": b"[1]\n",
        "deep": b"[" * 100_000 + b"\n",
        "keys": b'{"number": 2}\n',
        "bytes": b"\xff\x00\n",
    }
    if action in lines:
        connection.sendall(lines[action])
        time.sleep(0.5)
    return action
