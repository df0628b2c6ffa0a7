"""Process of the unit tests. The code under test is never in this process: its values arrive as
plain values, its objects as handles.

What a test asserts about plain values is decided here. A handle is compared by identity only: it
never equals a plain value or another handle, and has neither order nor arithmetic. Attributes,
calls, items, length and iteration run in the process of the code and return plain values or
handles. Methods with the names of plain types' own, such as `startswith`, exist only on what the
call of a class returns: a name of the tests that begins with a capital letter, but not `Solution`.

Impossible across two processes: functions of the tests as arguments, classes of the tests that
inherit from classes of the code, `with` blocks of the code's context managers. Such tests fail."""

import os
import sys
import types

# `threading` has a hook that runs in each forked process, which takes half a millisecond
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from inspect import signature
from typing import Any, BinaryIO

from . import names, wire

PASSED, FAILED, UNUSED = "1", "0", "-"
"""Result of a test. `UNUSED`: it passed without using the code at all, and counts as failed."""
EXCEPTION_MODULES = ("builtins", "json.decoder", "decimal", "queue", "_queue", "statistics")
"""Modules of exceptions that the code may raise in the tests."""
ENDS_LOOPS = (StopIteration, StopAsyncIteration)
"""Exceptions that would end a loop of the tests."""


def main(job: dict[str, Any]) -> None:
    """Run the tests and write one character for each to the results descriptor."""
    results = os.fdopen(job["results"], "w", buffering=1)
    code = Code(os.fdopen(job["calls"], "wb"), os.fdopen(job["replies"], "rb"))
    try:
        wire.receive(code.replies)
    except wire.ConnectionLostError:
        return
    tested = names.names_under_test(job["tests"], job["entry_point"])
    for test in job["tests"]:
        results.write(f"{run_test(test, tested, code, job['entry_point'])}\n")


def run_test(test: str, tested: set[str], code: "Code", entry_point: str | None) -> str:
    """Run a test as a test runner does: the text as a script, then its test functions, methods and
    cases."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    code.num_uses = 0
    try:
        module.__dict__.update(names.given_names(test, tested))
        module.__dict__.update(code.names(tested, entry_point))
        install_modules(code, names.modules_of_the_code(test))
        try:
            exec(compile(test, "tests.py", "exec"), module.__dict__)
        except SystemExit as error:
            if error.code not in (None, 0):
                return FAILED
        if not run_functions(module.__dict__):
            return FAILED
        return PASSED if code.num_uses else UNUSED
    except BaseException:
        return FAILED


def run_functions(namespace: dict[str, Any]) -> bool:
    """Run the test functions, the methods of test classes, and the unittest cases. Return False if
    one was skipped or failed."""
    for name, value in list(namespace.items()):
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            if not signature(value).parameters:
                finish(value())
        elif isinstance(value, type) and value.__module__ == "__main__":
            unittest = sys.modules.get("unittest")
            if unittest is not None and issubclass(value, unittest.TestCase):
                result = unittest.TestResult()
                unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
                if not result.wasSuccessful() or result.skipped:
                    return False
            elif name.startswith("Test"):
                run_methods(value)
    return True


def run_methods(test_class: type) -> None:
    methods = [name for name in dir(test_class) if name.startswith("test")]
    for method in methods:
        instance = test_class()
        for step in ("setup_method", method, "teardown_method"):
            finish(getattr(instance, step, lambda: None)())


def finish(result: object) -> None:
    if isinstance(result, types.CoroutineType):
        import asyncio

        asyncio.run(result)


class Code:
    """Connection to the code under test."""

    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls = calls
        self.replies = replies
        self.lock = allocate_lock()
        self.num_uses = 0
        """Uses of the code by the current test."""
        self.handles: dict[int, Handle] = {}
        self.exceptions: dict[str, type[Exception]] = {}

    def names(self, tested: set[str], entry_point: str | None) -> dict[str, Any]:
        """Return those of the names that the code defines; `candidate` is the function or method
        `entry_point`."""
        found = {}
        for name in sorted(tested):
            with suppress(AttributeError):
                found[name] = self.look_up(name)
        if entry_point is None:
            return found
        method = entry_point.removeprefix("Solution().")
        if method not in found:
            with suppress(AttributeError):
                solution = self.look_up("Solution")
                found[method] = lambda *args, **kwargs: getattr(solution(), method)(*args, **kwargs)
        if method in found:
            found["candidate"] = found[method]
        return found

    def look_up(self, name: str) -> Any:
        """Return the value of a global name of the code.

        Raises:
            AttributeError: the code does not define it, or it may not: it is not the code that
            decides what an assertion accepts.
        """
        if name.startswith("__") or names.is_assertion(name):
            raise AttributeError(name)
        reply = self.exchange({"name": name})
        if "missing" in reply:
            raise AttributeError(name)
        if "exception" in reply:
            return self.exception_class(reply["exception"])
        value = self.decode(reply["value"])
        if not isinstance(value, Handle):
            self.num_uses += 1
        elif name[:1].isupper() and name != "Solution":
            return ClassHandle(self, value._number)
        return value

    def request(self, operation: str, *args: object, **kwargs: object) -> Any:
        """Apply an operation in the process of the code. Raises the exception that the code
        raises."""
        self.num_uses += 1
        arguments = wire.encode((args, kwargs), number_of)
        reply = self.exchange({"operation": operation, "arguments": arguments})
        if "error" in reply:
            if operation == "next" and ["builtins", "StopIteration"] in reply["error"]["bases"]:
                raise StopIteration
            raise self.error(**reply["error"])
        if operation == "call" and "arguments" in reply:
            after, options = self.decode(reply["arguments"])
            changed = [*after, *options.values()]
            for argument, value in zip((*args, *kwargs.values()), changed, strict=True):
                update(argument, value)
        result = self.decode(reply["value"])
        return finished(result) if reply.get("awaitable") else result

    def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        with self.lock:  # tests may have threads
            wire.send(self.calls, message)
            return wire.receive(self.replies)

    def decode(self, value: object) -> Any:
        return wire.decode(value, self.handle)

    def handle(self, number: int) -> "Handle":
        if number not in self.handles:
            self.handles[number] = Handle(self, number)
        return self.handles[number]

    def exception_class(self, bases: list[list[str]]) -> type[Exception]:
        """Return the class of an exception: the standard library's own, or one with the name and
        the standard base of the code's class."""
        module, name = bases[0]
        if module in EXCEPTION_MODULES:
            kind = getattr(import_module(module), name, None)
            if isinstance(kind, type) and issubclass(kind, Exception) and kind not in ENDS_LOOPS:
                return kind
            return RuntimeError
        if name not in self.exceptions:
            base = self.exception_class(bases[1:])
            self.exceptions[name] = type(name, (base,), {})
        return self.exceptions[name]

    def error(self, bases: list[list[str]], args: object, attributes: object) -> Exception:
        kind = self.exception_class(bases)
        values = self.decode(args)
        error = kind.__new__(kind, *values)
        error.args = values
        vars(error).update(self.decode(attributes))
        return error


def update(argument: Any, changed: Any) -> None:
    if type(argument) is not type(changed) or argument == changed:
        return
    if isinstance(argument, list | bytearray | deque):
        argument.clear()
        argument.extend(changed)
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(changed)


async def finished(result: object) -> Any:
    """Return the result of a coroutine that has run in the process of the code."""
    return result


def number_of(value: object) -> int:
    if isinstance(value, Handle):
        return int(value._number)
    raise TypeError(
        f"{type(value).__name__} cannot be passed to the code under test: pass plain values"
    )


class Handle:
    """An object in the process of the code."""

    def __init__(self, code: Code, number: int) -> None:
        vars(self).update(_code=code, _number=number, _constructed=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name != "__name__":
            raise AttributeError(name)
        if name in wire.PLAIN_METHODS and not self._constructed:
            raise AttributeError(f"objects of the code have no method {name} of a plain type")
        return self._code.request("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._code.request("setattr", self, name, value)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._code.request("call", self, *args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Handle) and bool(
            self._code.request("isinstance", instance, self)
        )

    def __subclasscheck__(self, subclass: object) -> bool:
        return isinstance(subclass, Handle) and bool(
            self._code.request("issubclass", subclass, self)
        )


class ClassHandle(Handle):
    """A class of the code, by a name that the tests use."""

    def __init__(self, code: Code, number: int) -> None:
        super().__init__(code, number)
        vars(self).update(_constructed=True)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        result = super().__call__(*args, **kwargs)
        if isinstance(result, Handle):
            vars(result).update(_constructed=True)
        return result


def remote(operation: str) -> Callable[..., Any]:
    """Return a special method that runs in the process of the code."""

    def method(self: Handle, *args: object) -> Any:
        return self._code.request(operation, self, *args)

    return method


for special in ("len", "bool", "str", "repr", "iter", "next", "getitem", "setitem", "delitem"):
    setattr(Handle, f"__{special}__", remote(special))


def install_modules(code: Code, known: set[str]) -> None:
    """Make modules of these names, of which none is installed, importable: they are the code under
    test."""
    for name in sorted(known):
        module = types.ModuleType(name)
        module.__path__ = []
        module.__getattr__ = code.look_up  # type: ignore[method-assign]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
