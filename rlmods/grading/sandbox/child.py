"""What a confined process runs: a program, the code under test (`serve`) or its tests (`judge`)."""

import builtins
import os
import socket
import sys
import types
from typing import Any

from . import judge, names, serve, wire

WARM_UP_ROUNDS = 20
"""More than the 8 calls after which Python 3.11 specialises a function."""
names.standard_names()  # imported by the server, once for all processes


def main(mode: str, ends: dict[str, int]) -> None:
    """Read the job from its descriptor and run it. Called in a process that is already confined."""
    job = wire.read_job(ends.pop("job"))
    if mode == "check":
        return
    {"program": _program, "serve": serve.main, "judge": judge.main}[mode](job | ends)


def prepare_server() -> None:
    """Set what all programs find, and run a small solution and its test in the server.

    What Python keeps about code that has run, such as specialised instructions, is then there for
    all forked processes. Otherwise each of them writes it, and so copies that memory."""
    sys.setrecursionlimit(20_000)
    sys.argv = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    socket.socketpair = _socket_pair  # type: ignore[assignment]
    main_module = sys.modules["__main__"]
    for _ in range(WARM_UP_ROUNDS):
        solution: dict[str, Any] = {"__name__": "solution"}
        names.execute("def f(x):\n    return [x + 1]\nprint\nmath", "solution.py", solution)
        judge.run_locally("assert f(1) == [2]", serve.local(solution))
    sys.modules["__main__"] = main_module


def _program(job: dict[str, Any]) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names.execute(job["source"], "solution.py", module.__dict__)


class _PipeEnd:
    """End of a pipe with the methods that an event loop calls on the sockets by which it wakes
    itself up."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor

    def setblocking(self, blocking: bool) -> None:
        os.set_blocking(self.descriptor, blocking)

    def recv(self, size: int) -> bytes:
        return os.read(self.descriptor, size)

    def send(self, data: bytes) -> int:
        return os.write(self.descriptor, data)

    def close(self) -> None:
        os.close(self.descriptor)


def _socket_pair(*_: Any, **__: Any) -> tuple[_PipeEnd, _PipeEnd]:
    """A pipe in place of a pair of sockets, which confined processes may not make: asyncio needs no
    more."""
    reader, writer = os.pipe()
    return _PipeEnd(reader), _PipeEnd(writer)
