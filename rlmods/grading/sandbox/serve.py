"""Process of the code under test: it answers the operations that tests apply to what the code
defines (`judge`).

Nothing that this process sends is trusted: the code can send anything in its name.
"""

import builtins
import inspect
import io
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any, BinaryIO

from . import names, wire

_OPERATORS = (
    "add sub mul matmul truediv floordiv mod pow lshift rshift and_ or_ xor neg pos abs "
    "invert eq lt le gt ge contains "
    "getitem setitem delitem index iadd isub imul imatmul itruediv ifloordiv imod "
    "ipow ilshift irshift iand ior "
    "ixor"
)
_FUNCTIONS = (
    "getattr setattr delattr len bool int float complex str repr format hash iter next "
    "reversed round divmod bytes isinstance issubclass"
)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OPERATORS.split()},
    **{name: getattr(builtins, name) for name in _FUNCTIONS.split()},
    "call": _call,
    "enter": lambda x: type(x).__enter__(x),
    "exit": lambda x, *error: type(x).__exit__(x, *error),
    "equals_anything": lambda x: bool(x == object() or object() == x),
}
_MUTABLE = (list, dict, set, bytearray)


def main(job: dict[str, Any]) -> None:
    """Run the code as a module, then answer operations until the tests end."""
    server = _Server(os.fdopen(job["calls"], "rb"), os.fdopen(job["replies"], "wb"))
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    sys.stdout = io.StringIO()
    try:
        names.execute(job["source"], "solution.py", module.__dict__)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    server.run(module.__dict__)


def local(namespace: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that answers the messages of one connection in this process. For
    `child.prepare_server`."""
    server = _Server(io.BytesIO(), io.BytesIO())
    return lambda message: server.answer(message, namespace)


class _Server:
    """Objects that are not plain values stay in this process; the tests hold their numbers."""

    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls, self.replies = calls, replies
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.event_loop: Any = None

    def run(self, namespace: dict[str, Any]) -> None:
        wire.send(self.replies, {"ready": True})
        while True:
            try:
                message = wire.receive(self.calls)
            except wire.ConnectionLostError:
                return
            wire.send(self.replies, self.answer(message, namespace))

    def answer(self, message: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
        try:
            if "name" in message:
                return self.define(message["name"], namespace)
            return self.operate(**message)
        except BaseException as error:  # the tests may expect any exception
            if isinstance(error, StopIteration) and message.get("operation") == "next":
                return {"stop": True}
            return {"error": self.describe_error(error)}

    def define(self, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
        """Return what the code defines as `name`."""
        if name not in namespace:
            return {"missing": True}
        value = namespace[name]
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exception": self.describe_class(value)}
        return {"value": self.encode(value)}

    def operate(self, operation: str, args: Any, kwargs: Any) -> dict[str, Any]:
        values, options = self.decode(args), self.decode(kwargs)
        if operation == "plain":
            return {"value": wire.encode(values[0])}
        if operation == "await":
            return {"value": self.encode(self.wait_for(values[0]))}
        result = OPERATIONS[operation](*values, **options)
        reply: dict[str, Any] = {}
        for key, before, after in (("args", args, values), ("kwargs", kwargs, options)):
            # the call has changed its arguments
            if operation == "call" and (now := self.encode(after)) != before:
                reply[key] = now
        constructed = (
            operation == "call"
            and isinstance(values[0], type)
            and isinstance(result, _MUTABLE)
            and _is_own_class(type(result))
        )
        return reply | {
            "value": {"other": self.describe(result)} if constructed else self.encode(result)
        }

    def wait_for(self, awaitable: Any) -> Any:
        import asyncio

        if self.event_loop is None:
            self.event_loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.event_loop)
        return self.event_loop.run_until_complete(awaitable)

    def encode(self, value: Any) -> Any:
        return wire.encode(value, self.describe)

    def decode(self, value: Any) -> Any:
        return wire.decode(value, self.find)

    def describe(self, value: Any) -> dict[str, Any]:
        """Return the stand-in of an object."""
        if isinstance(value, _Callback):
            return {"callback": value.number}
        plain = isinstance(value, (*_MUTABLE, str, int, float, tuple))
        kind = {
            "is_class": isinstance(value, type),
            "plain": plain,
            "awaitable": inspect.iscoroutine(value),
        }
        return {"object": self.register(value), **{name: True for name, has in kind.items() if has}}

    def register(self, value: Any) -> int:
        """Return the number of an object, the same each time."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)  # kept alive, so that its id is not used again
        return self.numbers[id(value)]

    def find(self, stand_in: dict[str, Any]) -> Any:
        return (
            _Callback(self, stand_in["callback"])
            if "callback" in stand_in
            else self.objects[stand_in["object"]]
        )

    def describe_class(self, kind: type[BaseException]) -> list[list[Any]]:
        """Return module, name and number of an exception class and its bases; a number for those
        that the code defines."""
        return [
            [base.__module__, base.__name__, self.register(base) if _is_own_class(base) else None]
            for base in kind.__mro__
        ]

    def describe_error(self, error: BaseException) -> dict[str, Any]:
        try:
            args, attributes = self.encode(error.args), self.encode(dict(vars(error)))
        except Exception:  # arguments that cannot be sent, for example too deep
            args, attributes = self.encode(()), self.encode({})
        return {
            "classes": self.describe_class(type(error)),
            "args": args,
            "attributes": attributes,
            "text": str(error)[:10_000],
        }


class _Callback:
    """Function of the tests, passed to the code: it runs in the process of the tests."""

    def __init__(self, server: _Server, number: int) -> None:
        self.server, self.number = server, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        server = self.server
        wire.send(
            server.replies,
            {"callback": self.number, "args": server.encode(args), "kwargs": server.encode(kwargs)},
        )
        while True:
            message = wire.receive(server.calls)
            if "return" in message:
                return server.decode(message["return"])
            if "raise" in message:
                kind = getattr(builtins, message["raise"][0], RuntimeError)
                raise (
                    kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
                )(message["raise"][1])
            wire.send(server.replies, server.answer(message, {}))


def _is_own_class(kind: type) -> bool:
    return kind.__module__ in ("solution", "__main__")
