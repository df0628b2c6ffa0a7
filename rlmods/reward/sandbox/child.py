"""The confined process: it reads its job from a descriptor, raises the walls, and only then looks at the code.

- program: run the code as `__main__` on the given stdin.
- serve: run the code as a module, then answer calls of its functions (`wire`), each value a plain one or a handle.
- judge: run tests in which the names of a served module stand for calls to it. The code under test is never in this process.
"""

import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO

from . import walls, wire  # this package goes by another name here, as rlmods is not imported


def main(orders: int) -> None:
    with os.fdopen(orders, "rb") as stream:
        job = json.load(stream)
    sys.path += job["packages"]
    try:
        if job["readable"] is None:
            walls.limit(**job["limits"])
        else:
            walls.confine(job["readable"], **job["limits"])
    except walls.NoWallsError as error:
        sys.exit(str(error))
    os.write(job["ready"], b"1")
    os.close(job["ready"])
    sys.setrecursionlimit(20_000)
    sys.argv = ["solution.py"]
    MODES[job["mode"]](job)


def run_program(job: dict[str, Any]) -> None:
    exec(compile(job["source"], "solution.py", "exec"), {"__name__": "__main__", "__builtins__": builtins})


# The solution's side


class _Server:
    """Answers calls. Objects that are no plain values stay here; the other side holds numbers that stand for them."""

    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls, self.replies = calls, replies
        self.objects: list[Any] = []

    def keep(self, value: Any) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def __call__(self) -> None:
        while True:
            try:
                message = wire.receive(self.calls)
            except wire.GoneError:
                return
            try:
                reply = self.answer(message)
            except BaseException as error:  # whatever the code under test raises is the caller's to judge
                reply = {"error": [type(error).__name__, str(error)[:500]]}
            wire.send(self.replies, reply)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        target, name = self.objects[message["object"]], message["get"]
        if name == "__call__":
            args, kwargs = self.decoded(message["args"]), self.decoded(message["kwargs"])
            result = target(*args, **kwargs)
            return {"value": wire.encode(result, self.keep), "args": wire.encode(args, self.keep)}
        if name == "__iter__":
            return {"value": wire.encode(list(target), self.keep)}
        if name == "__len__":
            return {"value": len(target)}
        if name == "__getitem__":
            return {"value": wire.encode(target[self.decoded(message["args"])[0]], self.keep)}
        if name == "__str__":
            return {"value": str(target)}
        return {"value": wire.encode(getattr(target, name), self.keep)}

    def decoded(self, value: Any) -> Any:
        return wire.decode(value, self.objects.__getitem__)


def serve(job: dict[str, Any]) -> None:
    server = _Server(os.fdopen(job["calls"], "rb"), os.fdopen(job["replies"], "wb"))
    names: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}
    sys.stdout = io.StringIO() if job["mute"] else sys.stdout
    exec(compile(job["source"], "solution.py", "exec"), names)
    public = {name: server.keep(value) for name, value in names.items() if not name.startswith("__")}
    wire.send(server.replies, {"names": public})
    server()


# The tests' side


class _Remote:
    """An object of the solution. What it does, it does there; what comes back is plain or another one of these."""

    def __init__(self, connection: "_Connection", number: int) -> None:
        self.__dict__.update(_connection=connection, _number=number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._connection.ask(self._number, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._connection.ask(self._number, "__call__", args, kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._connection.ask(self._number, "__iter__"))

    def __len__(self) -> int:
        return int(self._connection.ask(self._number, "__len__"))

    def __getitem__(self, key: Any) -> Any:
        return self._connection.ask(self._number, "__getitem__", (key,))

    def __str__(self) -> str:
        return str(self._connection.ask(self._number, "__str__"))


class _Connection:
    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls, self.replies = calls, replies

    def names(self) -> dict[str, _Remote]:
        return {name: _Remote(self, int(number)) for name, number in wire.receive(self.replies)["names"].items()}

    def ask(self, number: int, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        given = {"args": wire.encode(list(args), self.number), "kwargs": wire.encode(kwargs or {}, self.number)}
        wire.send(self.calls, {"object": number, "get": name} | given)
        reply = wire.receive(self.replies)
        if "error" in reply:
            kind, text = map(str, reply["error"])
            raised = getattr(builtins, kind, RuntimeError)
            if not (isinstance(raised, type) and issubclass(raised, Exception)) or issubclass(raised, StopIteration | StopAsyncIteration):
                raised = RuntimeError  # the latter would end a loop of the test
            raise raised(text)
        for mine, theirs in zip(args, reply.get("args", {}).get("list", ()), strict=False):  # it may have changed what it was given
            _update(mine, wire.decode(theirs, self.remote))
        return wire.decode(reply["value"], self.remote)

    def remote(self, number: Any) -> _Remote:
        return _Remote(self, int(number))

    @staticmethod
    def number(value: Any) -> int:
        if isinstance(value, _Remote):
            return int(value._number)
        raise TypeError(f"{type(value).__name__} cannot be handed to the code under test: give it plain values")


def _update(mine: Any, theirs: Any) -> None:
    if type(mine) is type(theirs) and mine != theirs:
        if isinstance(mine, list):
            mine[:] = theirs
        elif isinstance(mine, dict | set):
            mine.clear()
            mine.update(theirs)


def judge(job: dict[str, Any]) -> None:
    """One line for each test on the results' descriptor: whether it passed."""
    results = os.fdopen(job["results"], "w", buffering=1)
    connection = _Connection(os.fdopen(job["calls"], "wb"), os.fdopen(job["replies"], "rb"))
    try:
        given: dict[str, Any] = dict(connection.names())
    except wire.GoneError:
        return
    # What a test calls by a name of Python's own is Python's own, whatever the code under test calls so.
    own = {name: import_module(name) for name in given if name in sys.stdlib_module_names and not name.startswith("_")}
    theirs = {name: value for name, value in given.items() if name.isidentifier() and name[:2] != "__" and not hasattr(builtins, name)}
    if (candidate := _candidate(given, job["entry_point"])) is not None:
        theirs["candidate"] = candidate
    for test in job["tests"]:
        names = {**theirs, **own, "__name__": "tests", "__builtins__": builtins}
        try:
            exec(compile(test, "tests.py", "exec"), names)
            passed = True
        except Exception:
            passed = False
        results.write(f"{int(passed)}\n")


def _candidate(given: dict[str, Any], name: str | None) -> Callable[..., Any] | None:
    """The function under test, or the method of a class `Solution`."""
    found: Callable[..., Any] | None = given.get(name or "")
    solution = given.get("Solution")
    if found is None and solution is not None and name is not None:
        return lambda *args, **kwargs: getattr(solution(), name)(*args, **kwargs)
    return found


MODES: dict[str, Callable[[dict[str, Any]], None]] = {"program": run_program, "serve": serve, "judge": judge}
