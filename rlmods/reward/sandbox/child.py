"""Entry point of the confined process: read the job from a file descriptor, confine the process, and only then load the code.

- program: run the code as `__main__` on the given stdin.
- serve: run the code as a module, then answer calls to its functions (`wire`). Values are plain values or handles of objects.
- judge: run tests in which the names of a served module are proxies that call it. The code under test is never in this process.
"""

import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO

from . import walls, wire  # relative, as this package is imported here as `sandbox`, without rlmods


def main(job_fd: int) -> None:
    with os.fdopen(job_fd, "rb") as stream:
        job = json.load(stream)
    sys.path += job["packages"]
    try:
        if job["readable"] is None:
            walls.limit(**job["limits"])
        else:
            walls.confine(job["readable"], **job["limits"])
    except walls.UnsupportedError as error:
        sys.exit(str(error))
    os.write(job["ready"], b"1")
    os.close(job["ready"])
    sys.setrecursionlimit(20_000)
    sys.argv = ["solution.py"]
    MODES[job["mode"]](job)


def run_program(job: dict[str, Any]) -> None:
    exec(compile(job["source"], "solution.py", "exec"), {"__name__": "__main__", "__builtins__": builtins})


# Process of the code under test


class _Server:
    """Answers calls. Objects that are not plain values stay in this process; the tests hold their numbers."""

    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls, self.replies = calls, replies
        self.objects: list[Any] = []

    def register(self, value: Any) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def __call__(self) -> None:
        while True:
            try:
                message = wire.receive(self.calls)
            except wire.ConnectionLostError:
                return
            try:
                reply = self.answer(message)
            except BaseException as error:  # the tests may expect any exception
                reply = {"error": [type(error).__name__, str(error)[:500]]}
            wire.send(self.replies, reply)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        target, name = self.objects[message["object"]], message["get"]
        if name == "__call__":
            args, kwargs = self.decode(message["args"]), self.decode(message["kwargs"])
            result = target(*args, **kwargs)
            return {"value": wire.encode(result, self.register), "args": wire.encode(args, self.register)}
        if name == "__iter__":
            return {"value": wire.encode(list(target), self.register)}
        if name == "__len__":
            return {"value": len(target)}
        if name == "__getitem__":
            return {"value": wire.encode(target[self.decode(message["args"])[0]], self.register)}
        if name == "__str__":
            return {"value": str(target)}
        return {"value": wire.encode(getattr(target, name), self.register)}

    def decode(self, value: Any) -> Any:
        return wire.decode(value, self.objects.__getitem__)


def serve(job: dict[str, Any]) -> None:
    server = _Server(os.fdopen(job["calls"], "rb"), os.fdopen(job["replies"], "wb"))
    names: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}
    sys.stdout = io.StringIO() if job["mute"] else sys.stdout
    exec(compile(job["source"], "solution.py", "exec"), names)
    public = {name: server.register(value) for name, value in names.items() if not name.startswith("__")}
    wire.send(server.replies, {"names": public})
    server()


# Process of the tests


class _Proxy:
    """Proxy of an object in the other process. Its operations run there and return plain values or further proxies."""

    def __init__(self, connection: "_Connection", number: int) -> None:
        self.__dict__.update(_connection=connection, _number=number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._connection.request(self._number, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._connection.request(self._number, "__call__", args, kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._connection.request(self._number, "__iter__"))

    def __len__(self) -> int:
        return int(self._connection.request(self._number, "__len__"))

    def __getitem__(self, key: Any) -> Any:
        return self._connection.request(self._number, "__getitem__", (key,))

    def __str__(self) -> str:
        return str(self._connection.request(self._number, "__str__"))


class _Connection:
    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls, self.replies = calls, replies

    def names(self) -> dict[str, _Proxy]:
        return {name: _Proxy(self, int(number)) for name, number in wire.receive(self.replies)["names"].items()}

    def request(self, number: int, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        arguments = {"args": wire.encode(list(args), self.number), "kwargs": wire.encode(kwargs or {}, self.number)}
        wire.send(self.calls, {"object": number, "get": name} | arguments)
        reply = wire.receive(self.replies)
        if "error" in reply:
            name, message = map(str, reply["error"])
            error = getattr(builtins, name, RuntimeError)
            if not (isinstance(error, type) and issubclass(error, Exception)) or issubclass(error, StopIteration | StopAsyncIteration):
                error = RuntimeError  # StopIteration would end a loop of the test
            raise error(message)
        for argument, changed in zip(args, reply.get("args", {}).get("list", ()), strict=False):  # the call may modify its arguments
            _update(argument, wire.decode(changed, self.proxy))
        return wire.decode(reply["value"], self.proxy)

    def proxy(self, number: Any) -> _Proxy:
        return _Proxy(self, int(number))

    @staticmethod
    def number(value: Any) -> int:
        if isinstance(value, _Proxy):
            return int(value._number)
        raise TypeError(f"{type(value).__name__} cannot be passed to the code under test: pass plain values")


def _update(argument: Any, changed: Any) -> None:
    """Apply an in-place change of a list, dict or set."""
    if type(argument) is type(changed) and argument != changed:
        if isinstance(argument, list):
            argument[:] = changed
        elif isinstance(argument, dict | set):
            argument.clear()
            argument.update(changed)


def judge(job: dict[str, Any]) -> None:
    """Run the tests and write one line for each to the results descriptor: 1 if it passed, else 0."""
    results = os.fdopen(job["results"], "w", buffering=1)
    connection = _Connection(os.fdopen(job["calls"], "wb"), os.fdopen(job["replies"], "rb"))
    try:
        proxies: dict[str, Any] = dict(connection.names())
    except wire.ConnectionLostError:
        return
    # In tests, names of builtins and standard modules keep their meaning, even if the code under test redefines them.
    modules = {name: import_module(name) for name in proxies if name in sys.stdlib_module_names and not name.startswith("_")}
    tested = {name: value for name, value in proxies.items() if name.isidentifier() and name[:2] != "__" and not hasattr(builtins, name)}
    if (candidate := _candidate(proxies, job["entry_point"])) is not None:
        tested["candidate"] = candidate
    for test in job["tests"]:
        names = {**tested, **modules, "__name__": "tests", "__builtins__": builtins}
        try:
            exec(compile(test, "tests.py", "exec"), names)
            passed = True
        except Exception:
            passed = False
        results.write(f"{int(passed)}\n")


def _candidate(proxies: dict[str, Any], name: str | None) -> Callable[..., Any] | None:
    """Return the function under test, or the method of a class `Solution`."""
    function: Callable[..., Any] | None = proxies.get(name or "")
    solution = proxies.get("Solution")
    if function is None and solution is not None and name is not None:
        return lambda *args, **kwargs: getattr(solution(), name)(*args, **kwargs)
    return function


MODES: dict[str, Callable[[dict[str, Any]], None]] = {"program": run_program, "serve": serve, "judge": judge}
