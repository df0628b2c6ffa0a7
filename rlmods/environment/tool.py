"""A tool: a Python function, the JSON schema of its arguments, and calls of it with a time
limit."""

from __future__ import annotations

import inspect
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, get_type_hints

from rlmods.environment.functions import calculator, python
from rlmods.environment.search import Search
from rlmods.environment.worker import to_text
from rlmods.errors import UserError, suggest
from rlmods.grading.pool import Outcome, Pool, WorkerError
from rlmods.types import ToolCall

BUILT_IN = ("calculator", "python", "search")
"""Tools that ship with the package."""
JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
WORKER = "rlmods.environment.worker:work"


@dataclass(frozen=True)
class Tool:
    """A function that a policy can call.

    One in this process (`function`) is known to end soon and to fail with an exception only. Any
    other is called in a worker process, which is killed at the time limit (`target`)."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema as of OpenAI's tools, which chat templates show: `{"type": "function",
    "function": {...}}`."""
    function: Callable[..., Any] | None = None
    target: str | None = None
    """"module:function"."""

    @property
    def only_argument(self) -> str | None:
        """Name of the required argument if there is one, and it is a text; else None."""
        parameters = self.schema["function"]["parameters"]
        required = parameters["required"]
        is_text = (
            len(required) == 1
            and parameters["properties"][required[0]].get("type", "string") == "string"
        )
        return str(required[0]) if is_text else None

    def call(
        self, arguments: Mapping[str, Any], *, timeout_s: float, max_chars: int, workers: int
    ) -> ToolCall:
        """Return the record of a call. It never raises for what the function does: a failure is its
        result."""
        start = time.perf_counter()
        if mismatch := self._mismatch(arguments):
            outcome = Outcome("error", mismatch)
        elif self.function is not None:
            outcome = _call(self.function, arguments, max_chars)
        else:
            assert self.target is not None
            with _workers(workers, os.getpid()).worker() as worker:
                start = time.perf_counter()  # without the wait for a worker
                outcome = worker((self.target, dict(arguments), max_chars), timeout_s)
        seconds = time.perf_counter() - start
        if outcome.status == "ok":
            return ToolCall(self.name, dict(arguments), outcome.value, seconds=seconds)
        problem = (
            f"no result within {timeout_s:g} s"
            if outcome.status == "timeout"
            else str(outcome.value)
        )
        return ToolCall(
            self.name,
            dict(arguments),
            to_text(f"Error: {problem}", max_chars),
            outcome.status,
            seconds,
        )

    def _mismatch(self, arguments: Mapping[str, Any]) -> str | None:
        """Return how the arguments differ from the schema, None if they do not."""
        parameters = self.schema["function"]["parameters"]
        if unknown := [name for name in arguments if name not in parameters["properties"]]:
            return (
                f"{self.name} has no argument {unknown[0]!r}: "
                f"{suggest(unknown[0], parameters['properties'])}"
            )
        if missing := [name for name in parameters["required"] if name not in arguments]:
            return f"{self.name} needs the argument {missing[0]!r}"
        for name, value in arguments.items():
            wanted = parameters["properties"][name].get("type")
            kind = next((kind for kind, word in JSON_TYPES.items() if word == wanted), object)
            allowed = (int, float) if kind is float else kind
            if not isinstance(value, allowed) or (
                isinstance(value, bool) and kind in (int, float, str)
            ):
                return f"{self.name}: the argument {name!r} must be of type {wanted}"
        return None


def _call(function: Callable[..., Any], arguments: Mapping[str, Any], max_chars: int) -> Outcome:
    try:
        return Outcome("ok", to_text(function(**arguments), max_chars))
    except Exception as error:  # whatever a tool raises is observed by the policy
        return Outcome("error", f"{type(error).__name__}: {error}")


class _Worker:
    """A worker process that runs one call at a time, replaced if it is killed or crashes."""

    def __init__(self) -> None:
        self._pool = Pool(WORKER, workers=1)

    def __call__(self, call: tuple[Any, ...], timeout_s: float) -> Outcome:
        try:
            [outcome] = self._pool.map([call], timeout_s=timeout_s, batch_timeout_s=float("inf"))
        except WorkerError as error:  # it crashes in every call, or does not start
            self._pool.close()
            self._pool, outcome = Pool(WORKER, workers=1), Outcome("error", str(error))
        return outcome


class _Workers:
    """Worker processes. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._free: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(_Worker())

    @contextmanager
    def worker(self) -> Iterator[_Worker]:
        """Wait for a worker that is free, and keep it from others."""
        worker = self._free.get()
        try:
            yield worker
        finally:
            self._free.put(worker)


@cache
def _workers(count: int, process_id: int) -> _Workers:
    """Return this process's workers; a forked child must not use its parent's pipes."""
    return _Workers(count)


def load(name: str, documents: str | None = None, num_results: int = 3) -> Tool:
    """Return the tool of this name: one of `BUILT_IN`, or "module.function" for a function of a
    plugin or an installed package.

    Raises:
        UserError: there is no such tool, or its arguments have no JSON schema.
    """
    if name == "calculator":
        return Tool(name, schema(name, calculator), function=calculator)
    if name == "python":
        return Tool(name, schema(name, python), target="rlmods.environment.functions:python")
    if name == "search":
        if documents is None:
            raise UserError(
                "environment.tools: search needs documents: type environment.documents=FILE"
            )
        search = Search(documents, num_results)
        return Tool(name, schema(name, search.__call__), function=search)
    module, _, attribute = name.rpartition(".")
    if not module:
        raise UserError(
            f"environment.tools: unknown tool {name!r}: {suggest(name, BUILT_IN)}, or "
            "MODULE.FUNCTION of a plugin"
        )
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"environment.tools: {name}: {' '.join(str(error).split())}: type MODULE.FUNCTION "
            "of a plugin"
        ) from error
    if not callable(function):
        raise UserError(
            f"environment.tools: {name} is not a function: type MODULE.FUNCTION of a plugin"
        )
    return Tool(attribute, schema(attribute, function), target=f"{module}:{attribute}")


def schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments, with the first paragraph of its docstring
    as its description.

    Raises:
        UserError: an argument that cannot be given by name.
    """
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    if wrong := [
        p.name
        for p in parameters.values()
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]:
        raise UserError(
            f"environment.tools: {name}: the argument {wrong[0]} cannot be given by name: "
            "write the function without it"
        )
    properties = {
        n: {"type": JSON_TYPES[hints[n]]} if hints.get(n) in JSON_TYPES else {} for n in parameters
    }
    description = " ".join((inspect.getdoc(function) or name).split("\n\n")[0].split())
    required = [n for n, parameter in parameters.items() if parameter.default is parameter.empty]
    declared = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": declared},
    }
