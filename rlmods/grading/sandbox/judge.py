"""Process of the unit tests. The code under test is never in this process: its objects are proxies,
its values arrive as plain values.

What a test asserts about plain values is decided here. A proxy never equals a plain value by its
own say, nor does it answer for another object: `==` between two proxies, `<`, `in` and arithmetic
with plain values are asked of the code only where the tests themselves have called the class (a
name that begins with a capital letter, but not `Solution`), and an object that equals anything
equals nothing. Other objects have no methods with the names of those of plain types, such as
`startswith`. This right belongs to what the call of the class, a `with` block or arithmetic
returns, and not to what the code returns otherwise, even if it is the same object.

Impossible across two processes: that `is` holds for a list that was passed in and is returned,
classes of the tests that inherit from classes of the code, instances of classes of the tests as
arguments, asynchronous iterators, and weak references. Such tests fail."""

import ast
import builtins
import io
import json
import operator
import os
import sys
import types

# `threading` has a hook that runs in each forked process, which takes half a millisecond
from _thread import RLock
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, BinaryIO

from . import names, trees, wire

PASSED, FAILED, UNUSED = "1", "0", "-"
"""Result of a test. `UNUSED`: it passed without using the code at all, and counts as failed."""


def main(job: dict[str, Any]) -> None:
    """Run the tests and write one character for each to the results descriptor."""
    results = os.fdopen(job["results"], "w", buffering=1)
    code = _Code(os.fdopen(job["calls"], "wb"), os.fdopen(job["replies"], "rb"))
    try:
        wire.receive(code.replies)
    except wire.ConnectionLostError:
        return
    parsed = [ast.parse(test) for test in job["tests"]]
    imported = [trees.remove_imports_of_the_code(tree) for tree in parsed]
    tested = names.names_under_test(parsed, job["entry_point"])
    for test, tree, aliases in zip(job["tests"], parsed, imported, strict=True):
        if " is " in test or "assertIs" in test:
            trees.compare_identities(tree)
        results.write(f"{_run_test(tree, aliases, tested, code, job['entry_point'])}\n")


def run_locally(test: str, exchange: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Run a test whose messages are answered by a function of this process. For
    `child.prepare_server`."""
    code = _Code(io.BytesIO(), io.BytesIO())
    code.exchange = lambda message: json.loads(
        json.dumps(exchange(json.loads(json.dumps(message))))
    )  # type: ignore[method-assign]
    tree = ast.parse(test)
    return _run_test(
        tree,
        trees.remove_imports_of_the_code(tree),
        names.names_under_test([tree], None),
        code,
        None,
    )


def _run_test(
    tree: ast.Module,
    aliases: dict[str, str | None],
    tested: set[str],
    code: "_Code",
    entry_point: str | None,
) -> str:
    """Run a test as a test runner does: the text as a script, then its test functions, methods and
    cases."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    standard = names.standard_names()
    code.uses, code.failed, code.tree = 0, False, tree
    try:
        for name in (
            names.free_names([tree], among=names.known_names()) - tested - set(dir(builtins))
        ):
            if name in standard or name in sys.stdlib_module_names:
                module.__dict__[name] = standard.get(name) or import_module(name)
            elif name in names.PACKAGE_NAMES:
                module.__dict__[name] = import_module(names.PACKAGE_NAMES[name])
        module.__dict__.update(code.get(tested, entry_point))
        module.__dict__[trees.CANONICAL] = code.canonical
        for alias, imported in aliases.items():
            module.__dict__[alias] = (
                _Namespace(code)
                if imported is None
                else code.get({imported}, entry_point).get(imported)
            )
        try:
            exec(compile(tree, trees.FILENAME, "exec"), module.__dict__)
        except SystemExit as error:
            if type(error) is not SystemExit or error.code not in (None, 0):
                return FAILED
        if not _run_functions(module.__dict__) or code.failed:
            return FAILED
        return PASSED if code.uses else UNUSED
    except BaseException:
        return FAILED


def _run_functions(namespace: dict[str, Any]) -> bool:
    """Run the test functions, the methods of test classes, and the unittest cases. Return False if
    one was skipped or failed."""
    for name, value in list(namespace.items()):
        if (
            isinstance(value, types.FunctionType)
            and name.startswith("test")
            and _needs_nothing(value)
        ):
            _finish(value())
        if isinstance(value, type) and value.__module__ == "__main__":
            unittest = sys.modules.get("unittest")
            if unittest is not None and issubclass(value, unittest.TestCase):
                result = unittest.TestResult()
                unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
                if not result.wasSuccessful() or result.skipped:
                    return False
            elif name.startswith("Test"):
                for method in [key for key in dir(value) if key.startswith("test")]:
                    instance = value()
                    for step in ("setup_method", method, "teardown_method"):
                        _finish(getattr(instance, step, lambda: None)())
    return True


def _needs_nothing(function: types.FunctionType) -> bool:
    return all(
        x.default is not Parameter.empty or x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD)
        for x in signature(function).parameters.values()
    )


def _finish(result: Any) -> None:
    if isinstance(result, types.CoroutineType):
        import asyncio

        asyncio.run(result)


class _RemoteExitError(SystemExit):
    """The code under test has called `exit`."""


class _Code:
    """Connection to the code under test."""

    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self.calls, self.replies = calls, replies
        self.lock = RLock()
        self.uses = 0
        """Uses of the code by the current test."""
        self.failed = False
        """An assertion of the current test has failed inside a call of the code."""
        self.tree = ast.Module([], [])
        """The current test."""
        self.proxies: dict[int, _Proxy] = {}
        self.callbacks: list[Callable[..., Any]] = []
        self.exceptions: dict[int, type[Exception]] = {}
        self.functions: dict[str, Any] = {}
        """Proxies and exception classes by their names, which stay; constants may change from test
        to test."""

    def get(self, tested: set[str], entry_point: str | None) -> dict[str, Any]:
        """Return those of the names that the code defines; `candidate` is the function or method
        `entry_point`."""
        found = {}
        for name in sorted(tested):
            if name in self.functions:
                found[name] = self.functions[name]
                continue
            reply = self.exchange({"name": name})
            if "exception" in reply:
                found[name] = self.functions[name] = self.exception_class(reply["exception"])
            elif "value" in reply:
                found[name] = value = self.decode(reply["value"])
                if isinstance(value, _Proxy):
                    constructs = value._is_class and name[:1].isupper() and name != "Solution"
                    found[name] = self.functions[name] = _copy(
                        value, _is_named_class=value._is_class, _constructs=constructs
                    )
                else:
                    self.uses += 1
        if (
            entry_point is not None
            and (candidate := self.candidate(entry_point, found)) is not None
        ):
            found["candidate"] = candidate
            if entry_point.isidentifier():
                found.setdefault(entry_point, candidate)
        return found

    def candidate(self, entry_point: str, found: dict[str, Any]) -> Any:
        """Return the function under test, or the method of a class `Solution`."""
        method = entry_point.removeprefix("Solution().")
        if method in found:
            return found[method]
        reply = self.exchange({"name": "Solution"})
        if "value" not in reply:
            return None
        solution = self.decode(reply["value"])
        return lambda *args, **kwargs: getattr(solution(), method)(*args, **kwargs)

    def request(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Apply an operation in the process of the code. Raises the exception that the code
        raises."""
        self.uses += 1
        reply = self.exchange(
            {"operation": operation, "args": self.encode(args), "kwargs": self.encode(kwargs)}
        )
        if "stop" in reply and operation == "next":
            raise StopIteration
        if "error" in reply:
            raise self.error(**reply["error"])
        if "value" not in reply:
            raise wire.ConnectionLostError("not a reply")
        for before, key in ((args, "args"), (tuple(kwargs.values()), "kwargs")):
            if key in reply and operation == "call":  # the call has changed its arguments
                after = self.decode(reply[key])
                for argument, changed in zip(
                    before, after.values() if key == "kwargs" else after, strict=False
                ):
                    _update(argument, changed)
        return self.decode(reply["value"])

    def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its reply; run the functions of the tests that the code calls
        meanwhile."""
        with self.lock:
            wire.send(self.calls, message)
            while "callback" in (reply := wire.receive(self.replies)):
                try:
                    result = self.callbacks[reply["callback"]](
                        *self.decode(reply["args"]), **self.decode(reply["kwargs"])
                    )
                    answer = {"return": self.encode(result)}
                except Exception as error:
                    self.note(error)
                    answer = {"raise": [type(error).__name__, str(error)[:500]]}
                wire.send(self.calls, answer)
            return reply

    def note(self, error: BaseException | None) -> None:
        """Keep that an assertion of the tests has failed, before the code gets the exception and
        may suppress it."""
        # `_text`: an error of the code
        self.failed |= isinstance(error, AssertionError) and not hasattr(error, "_text")

    def encode(self, value: Any) -> Any:
        return wire.encode(value, self.describe)

    def decode(self, value: Any) -> Any:
        return wire.decode(value, self.find, _check)

    def describe(self, value: Any) -> dict[str, Any]:
        """Return the stand-in of a proxy or function."""
        if isinstance(value, _Proxy):
            return {"object": value._number}
        for number, kind in self.exceptions.items():
            if value is kind:
                return {"object": number}
        if callable(value):
            self.callbacks.append(value)
            return {"callback": len(self.callbacks) - 1}
        raise TypeError(
            f"{type(value).__name__} cannot be passed to the code under test: pass plain "
            "values or functions"
        )

    def find(self, stand_in: dict[str, Any]) -> Any:
        """Return the proxy, coroutine or function for a stand-in."""
        if "callback" in stand_in:
            return self.callbacks[int(stand_in["callback"])]
        number = int(stand_in["object"])
        if number not in self.proxies:
            self.proxies[number] = _Proxy(
                self, number, bool(stand_in.get("is_class")), bool(stand_in.get("plain"))
            )
        return (
            self.wait_for(self.proxies[number])
            if stand_in.get("awaitable")
            else self.proxies[number]
        )

    async def wait_for(self, awaitable: "_Proxy") -> Any:
        return self.request("await", awaitable)

    def canonical(self, value: Any) -> Any:
        """Return the one proxy of an object that all its copies stand for; other values as they
        are."""
        return self.proxies[value._number] if isinstance(value, _Proxy) else value

    def exception_class(self, classes: list[list[Any]]) -> type[Exception]:
        """Return the class of an exception: the standard library's own, or one with the name and
        bases of the code's class."""
        (module, name, number), *bases = classes
        if number is None:
            kind = (
                getattr(import_module(module), name, None) if module in _EXCEPTION_MODULES else None
            )
            if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(
                kind, StopIteration | StopAsyncIteration
            ):
                return RuntimeError  # StopIteration would end a loop of the test
            return kind
        if number not in self.exceptions:
            base = self.exception_class(bases)
            self.exceptions[number] = type(
                str(name),
                (base,),
                {"__str__": lambda error: getattr(error, "_text", None) or base.__str__(error)},
            )
        return self.exceptions[number]

    def error(
        self, classes: list[list[Any]], args: Any, attributes: Any, text: str
    ) -> BaseException:
        if classes[0][:2] == ["builtins", "SystemExit"]:
            return _RemoteExitError(*self.decode(args))
        kind = self.exception_class(classes)
        values = self.decode(args)
        error = kind.__new__(kind, *values)
        error.args = values
        error.__dict__.update(self.decode(attributes), _text=str(text))
        return error


_EXCEPTION_MODULES = (
    "builtins",
    "json.decoder",
    "decimal",
    "queue",
    "_queue",
    "asyncio.exceptions",
    "asyncio.queues",
    "collections",
    "re",
    "zoneinfo",
    "fractions",
    "statistics",
    "struct",
    "binascii",
    "csv",
    "_csv",
    "copy",
    "graphlib",
    "dataclasses",
    "concurrent.futures._base",
    "string",
    "enum",
    "datetime",
    "ast",
    "configparser",
)


def _update(argument: Any, changed: Any) -> None:
    """Apply an in-place change of a list, dict, set, bytearray or deque."""
    if type(argument) is not type(changed) or argument == changed:
        return
    if isinstance(argument, list | bytearray):
        argument[:] = changed
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(changed)
    elif hasattr(argument, "extendleft"):
        argument.clear()
        argument.extend(changed)


def _check(value: Any) -> Any:
    """Return a named tuple or array that the code has sent. Raises ValueError for one that
    pretends: a field that is called as if it were a method of a plain type, or an empty array of
    several dimensions, which numpy finds equal in all elements to almost any other."""
    if isinstance(value, tuple):
        if any(
            callable(item) and field in _METHODS
            for field, item in zip(value._fields, value, strict=True)
        ):  # type: ignore[attr-defined]
            raise ValueError("a named tuple with a method of a plain type as a field")
    elif value.size == 0 and value.ndim > 1:
        raise ValueError("an empty array of several dimensions")
    return value


class _Namespace:
    """The code under test as a module."""

    def __init__(self, code: _Code) -> None:
        self._code = code

    def __getattr__(self, name: str) -> Any:
        found = self._code.get({name}, None)
        if name not in found:
            raise AttributeError(name)
        return found[name]


class _Proxy:
    """Object in the process of the code. Its operations run there and return plain values or
    further proxies."""

    def __init__(self, code: _Code, number: int, is_class: bool, plain: bool) -> None:
        self.__dict__.update(
            _code=code, _number=number, _is_class=is_class, _plain=plain, _is_named_class=False
        )
        self.__dict__.update(_constructs=False, _constructed=False, _given_numbers={})

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__")
            and name.endswith("__")
            and name not in ("__name__", "__members__")
        ):
            raise AttributeError(name)
        value = self._code.request("getattr", self, name)
        if callable(value) and name in _METHODS and not (self._constructed or self._is_named_class):
            if not self._plain:
                raise AttributeError(f"objects of the code have no method {name} of a plain type")
            return getattr(self._code.request("plain", self), name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._code.request("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._code.request("delattr", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._code.request("call", self, *args, **kwargs)
        return (
            _copy(result, _constructed=True)
            if self._constructs and isinstance(result, _Proxy)
            else result
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Proxy):
            return bool(self._plain and self._code.request("plain", self) == other)
        if self._number == other._number:
            return True
        if not (self._constructed or other._constructed) or self._code.request(
            "equals_anything", self
        ):
            return False
        return self._code.request("eq", self, other) is True and not self._code.request(
            "equals_anything", other
        )

    def __hash__(self) -> int:
        return int(self._code.request("hash", self))

    def __iter__(self) -> Iterator[Any]:
        result: Iterator[Any] = self._code.request("iter", self)
        return result

    def __instancecheck__(self, instance: Any) -> bool:
        return (
            isinstance(instance, _Proxy)
            and self._code.request("isinstance", instance, self) is True
        )

    def __subclasscheck__(self, subclass: Any) -> bool:
        return (
            isinstance(subclass, _Proxy)
            and self._code.request("issubclass", subclass, self) is True
        )

    def __enter__(self) -> Any:
        result = self._code.request("enter", self)
        return self if isinstance(result, _Proxy) and result._number == self._number else result

    def __exit__(self, *error: Any) -> Any:
        self._code.note(error[1])
        suppresses = bool(
            self._code.request(
                "exit", self, *((None,) * 3 if error[0] is None else (None, str(error[1]), None))
            )
        )
        self._code.failed |= suppresses and trees.skips_assertions(self._code.tree, error[2])
        return suppresses

    def __contains__(self, item: Any) -> bool:
        if self._constructed:
            return self._code.request("contains", self, item) is True
        return any(item is x or item == x for x in iter(self))

    def __reversed__(self) -> Any:
        return self._code.request("reversed", self)


def _copy(proxy: _Proxy, **flags: bool) -> _Proxy:
    """Return another proxy of the same object."""
    copy = _Proxy(proxy._code, proxy._number, proxy._is_class, proxy._plain)
    copy.__dict__.update(flags)
    return copy


_PLAIN_TYPES = (str, bytes, list, tuple, dict, set, frozenset, int, float, complex)
_METHODS = {name for kind in _PLAIN_TYPES for name in dir(kind) if not name.startswith("_")} | {
    "equals"
}
_CONTAINER_METHODS = """
append pop add remove clear insert update extend get keys values items copy popitem setdefault discard sort reverse
"""
_METHODS -= set(_CONTAINER_METHODS.split())
"""Methods of plain types, and of packages, that say how an object compares with others; not those
that containers of the code have too."""
_NAMES = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and_",
    "or_",
    "xor",
)
_BINARY: dict[str, Callable[..., Any]] = {name: getattr(operator, name) for name in _NAMES} | {
    "divmod": divmod
}
_UNARY = ("neg", "pos", "abs", "invert", "round")
_BINARY |= {f"i{name.rstrip('_')}": getattr(operator, name) for name in _NAMES}


def _forward(name: str, operation: str, reflected: bool = False, only: type | None = None) -> None:
    """Give proxies a special method that runs in the process of the code, but arithmetic with plain
    values only if the tests have made the object."""
    binary = operation in _BINARY
    gives_number = operation in ("int", "float", "complex", "index")

    def method(self: _Proxy, *args: Any) -> Any:
        if binary and not (self._constructed or any(isinstance(arg, _Proxy) for arg in args)):
            if not self._plain:
                return NotImplemented
            value = self._code.request("plain", self)
            return (
                _BINARY[operation](*reversed((value, *args)))
                if reflected
                else _BINARY[operation](value, *args)
            )
        if gives_number and not self._constructed:
            # asked once: another number each time would fit any condition
            if operation not in self._given_numbers:
                self._given_numbers[operation] = self._code.request(operation, self)
            result = self._given_numbers[operation]
        else:
            result = (
                self._code.request(operation, *reversed((self, *args)))
                if reflected
                else self._code.request(operation, self, *args)
            )
        if self._constructed and isinstance(result, _Proxy) and (binary or operation in _UNARY):
            result = _copy(result, _constructed=True)
        if only is not None and not isinstance(result, only):
            raise TypeError(f"{name} returned {type(result).__name__}")
        return result

    setattr(_Proxy, name, method)


def _compare(name: str) -> None:
    def method(self: _Proxy, other: Any) -> Any:
        if not self._constructed:
            return NotImplemented
        return self._code.request(name, self, other) is True

    setattr(_Proxy, f"__{name}__", method)


for _name in (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
    "divmod",
):
    _operation = _name + "_" * (_name in ("and", "or"))
    _forward(f"__{_name}__", _operation)
    _forward(f"__r{_name}__", _operation, reflected=True)
    if _name != "divmod":
        _forward(f"__i{_name}__", f"i{_name}")
for _name in (*_UNARY, "getitem", "setitem", "delitem", "next", "complex"):
    _forward(f"__{_name}__", _name)
_TYPES: dict[str, type] = dict.fromkeys(("str", "repr", "format"), str) | dict.fromkeys(
    ("len", "int", "index"), int
)
_TYPES |= {kind.__name__: kind for kind in (bool, float, bytes)}
for _name, _type in _TYPES.items():
    _forward(f"__{_name}__", _name, only=_type)
for _name in ("lt", "le", "gt", "ge"):
    _compare(_name)
