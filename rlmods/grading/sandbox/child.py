"""What a confined process runs: a program, the code under test (`code_runner`) or its tests
(`test_runner`)."""

import builtins
import os
import socket
import sys
import types
from typing import Any

from . import code_runner, names, test_runner, wire

names.standard_names()  # imported by the server, once for all processes


def main(mode: str, ends: dict[str, int]) -> None:
    """Read the job from its descriptor and run it. Called in a process that is already confined."""
    job = wire.read_job(ends.pop("job"))
    if mode == "program":
        _run_program(job["source"])
    elif mode == "code":
        code_runner.main(job | ends)
    elif mode == "tests":
        test_runner.main(job | ends)


def prepare_server() -> None:
    """Set what all programs find."""
    sys.setrecursionlimit(20_000)
    sys.argv = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    socket.socketpair = _socket_pair  # type: ignore[assignment]


def _run_program(source: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names.execute(source, "solution.py", module.__dict__)


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
