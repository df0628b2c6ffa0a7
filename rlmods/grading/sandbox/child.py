"""What a confined process runs: a program, the code under test or its tests (`test_runner`)."""

import builtins
import inspect
import io
import operator
import os
import socket
import sys
import types
from typing import Any

from . import names, test_runner, wire

names.standard_names()  # imported by the server, once for all processes
OPERATIONS: dict[str, Any] = vars(operator) | vars(builtins)


def main(mode: str, ends: dict[str, int]) -> None:
    """Read the job from its descriptor and run it. Called in a process that is already confined."""
    job = wire.read_job(ends.pop("job"))
    if mode == "program":
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        names.execute(job["source"], "solution.py", module.__dict__)
    elif mode == "code":
        run_code(job | ends)
    elif mode == "tests":
        test_runner.main(job | ends)


def prepare_server() -> None:
    sys.setrecursionlimit(20_000)
    sys.argv = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    socket.socketpair = _socket_pair  # type: ignore[assignment]


def run_code(job: dict[str, Any]) -> None:
    """Run the code under test as a module, then apply operations to what it defines, as the tests
    ask it to, until they end. Nothing that this process sends is trusted: the code can send
    anything in its name."""
    calls = os.fdopen(job["calls"], "rb")
    replies = os.fdopen(job["replies"], "wb")
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    sys.stdout = io.StringIO()
    try:
        names.execute(job["source"], "solution.py", module.__dict__)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    objects = Objects()
    wire.send(replies, {"ready": True})
    while True:
        try:
            message = wire.receive(calls)
        except wire.ConnectionLostError:
            return
        wire.send(replies, objects.answer(message, module.__dict__))


class Objects:
    """Objects that are not plain values stay in this process; the tests have their numbers."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}

    def answer(self, message: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
        try:
            if "name" in message:
                return self.look_up(message["name"], namespace)
            return self.operate(**message)
        except BaseException as error:  # the tests may expect any exception
            return {"error": self.describe_error(error)}

    def look_up(self, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
        if name not in namespace:
            return {"missing": True}
        value = namespace[name]
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exception": bases_of(value)}
        return {"value": self.encode(value)}

    def operate(self, operation: str, arguments: object) -> dict[str, Any]:
        """Return the result of an operation, and the arguments if it has changed them in place."""
        values, options = wire.decode(arguments, self.objects.__getitem__)
        result = OPERATIONS[operation](*values, **options)
        if operation != "call":
            return {"value": self.encode(result)}
        reply: dict[str, Any] = {}
        if inspect.iscoroutine(result):
            import asyncio

            result = asyncio.run(result)
            reply["awaitable"] = True
        now = self.encode((values, options))
        if now != arguments:
            reply["arguments"] = now
        reply["value"] = self.encode(result)
        is_own = type(result).__module__ == "solution" and not isinstance(result, tuple)
        if isinstance(values[0], type) and is_own:  # also an instance of a subclass of dict
            reply["value"] = {"object": self.register(result)}
        return reply

    def encode(self, value: object) -> Any:
        return wire.encode(value, self.register)

    def describe_error(self, error: BaseException) -> dict[str, Any]:
        try:
            args = self.encode(error.args)
            attributes = self.encode(vars(error))
        except Exception:  # what cannot be sent, for example too deep
            args = self.encode(())
            attributes = self.encode({})
        return {"bases": bases_of(type(error)), "args": args, "attributes": attributes}

    def register(self, value: object) -> int:
        """Return the number of an object, the same each time."""
        self.objects[id(value)] = value  # kept alive, so that its id is not used again
        return id(value)


def bases_of(kind: type[BaseException]) -> list[list[str]]:
    return [[base.__module__, base.__name__] for base in kind.__mro__]


class _PipeEnd(io.FileIO):
    """End of a pipe with the methods that an event loop calls on the sockets by which it wakes
    itself up."""

    recv = io.FileIO.read
    send = io.FileIO.write

    def setblocking(self, blocking: bool) -> None:
        os.set_blocking(self.fileno(), blocking)


def _socket_pair(*_: object, **__: object) -> tuple[_PipeEnd, _PipeEnd]:
    """A pipe in place of a pair of sockets, which confined processes may not make: asyncio needs no
    more."""
    reader, writer = os.pipe()
    return _PipeEnd(reader, "rb"), _PipeEnd(writer, "wb")
