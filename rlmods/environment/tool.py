"""A tool: a Python function, and the JSON schema of its arguments."""

import inspect
import os
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from rlmods.environment.search import Search
from rlmods.errors import UserError, suggest
from rlmods.grading.pool import Outcome, Pool, WorkerError
from rlmods.grading.tool_worker import calculator, python, to_text
from rlmods.run.functions import load_function
from rlmods.types import ToolCall

WORKER = "rlmods.grading.tool_worker:work"
Timed = tuple[Outcome, float]
"""Outcome of a call, and its seconds."""
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
    def properties(self) -> Mapping[str, Any]:
        """JSON schemas of the arguments, by name."""
        properties: dict[str, Any] = self.schema["function"]["parameters"]["properties"]
        return properties

    @property
    def only_argument(self) -> str | None:
        """Name of the required argument if there is one, and it is a text; else None."""
        required = self.schema["function"]["parameters"]["required"]
        if len(required) != 1 or self.properties[required[0]].get("type", "string") != "string":
            return None
        return str(required[0])

    def call(
        self, arguments: Mapping[str, Any], *, timeout_s: float, max_chars: int, workers: int
    ) -> ToolCall:
        """Return the record of a call. It never raises for what the function does: a failure is its
        result."""
        given = dict(arguments)
        seconds = 0.0
        mismatch = self._mismatch(arguments)
        if mismatch is not None:
            outcome = Outcome("error", mismatch)
        elif self.function is not None:
            outcome, seconds = call_here(self.function, given, max_chars)
        else:
            outcome, seconds = call_in_worker(
                str(self.target), given, max_chars, timeout_s=timeout_s, workers=workers
            )
        if outcome.status == "ok":
            return ToolCall(self.name, given, outcome.value, seconds=seconds)
        is_late = outcome.status == "timeout"
        problem = f"no result within {timeout_s:g} s" if is_late else outcome.value
        text = to_text(f"Error: {problem}", max_chars)
        return ToolCall(self.name, given, text, outcome.status, seconds)

    def _mismatch(self, arguments: Mapping[str, Any]) -> str | None:
        """Return how the arguments differ from the schema, None if they do not."""
        for name in arguments:
            if name not in self.properties:
                return f"{self.name} has no argument {name!r}: {suggest(name, self.properties)}"
        for name in self.schema["function"]["parameters"]["required"]:
            if name not in arguments:
                return f"{self.name} needs the argument {name!r}"
        for name, value in arguments.items():
            wanted = self.properties[name].get("type")
            if wanted is not None and not _is_of_type(value, wanted):
                return f"{self.name}: the argument {name!r} must be of type {wanted}"
        return None


def _is_of_type(value: object, wanted: str) -> bool:
    """Return whether a value is of a JSON type. A whole number is a number, true is not."""
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "number":
        return isinstance(value, int | float)
    return JSON_TYPES.get(type(value)) == wanted


def load(name: str, documents: str | None = None, num_results: int = 3) -> Tool:
    """Return the tool of this name: one of `BUILT_IN`, or "module.function" for a function of a
    plugin or an installed package.

    Raises:
        UserError: there is no such tool, or its arguments have no JSON schema.
    """
    if name == "calculator":
        return Tool(name, schema(name, calculator), function=calculator)
    if name == "python":
        return Tool(name, schema(name, python), target=f"{python.__module__}:{name}")
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
    function = load_function(f"{module}:{attribute}", "environment.tools")
    return Tool(attribute, schema(attribute, function), target=f"{module}:{attribute}")


def schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments, with the first paragraph of its docstring
    as its description.

    Raises:
        UserError: an argument that cannot be given by name.
    """
    hints = get_type_hints(function)
    properties: dict[str, dict[str, str]] = {}
    required = []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(
                f"environment.tools: {name}: the argument {key} cannot be given by name: write "
                "the function without it"
            )
        kind = JSON_TYPES.get(hints.get(key, object))
        properties[key] = {} if kind is None else {"type": kind}
        if parameter.default is parameter.empty:
            required.append(key)
    description = " ".join((inspect.getdoc(function) or name).split("\n\n")[0].split())
    declared = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": declared},
    }


def call_here(function: Callable[..., Any], arguments: Mapping[str, Any], max_chars: int) -> Timed:
    """Call a function in this process."""
    start = time.perf_counter()
    try:
        outcome = Outcome("ok", to_text(function(**arguments), max_chars))
    except Exception as error:  # whatever a tool raises is observed by the policy
        outcome = Outcome("error", f"{type(error).__name__}: {error}")
    return outcome, time.perf_counter() - start


def call_in_worker(
    target: str, arguments: Mapping[str, Any], max_chars: int, *, timeout_s: float, workers: int
) -> Timed:
    """Call a function, "module:function", in one of `workers` processes. The wait for a free one
    counts neither as time of the call nor for its limit."""
    free = _pools(workers, os.getpid())
    pool = free.get()
    start = time.perf_counter()
    call = (target, dict(arguments), max_chars)
    try:
        [outcome] = pool.map([call], timeout_s=timeout_s, batch_timeout_s=float("inf"))
    except WorkerError as error:  # the process ends in every call, or does not start
        pool.close()
        pool = Pool(WORKER, workers=1)
        outcome = Outcome("error", str(error))
    finally:
        free.put(pool)
    return outcome, time.perf_counter() - start


@cache
def _pools(count: int, process_id: int) -> queue.LifoQueue[Pool]:
    """Return this process's pools of one worker each, as a pool runs one batch of calls at a time;
    a forked child must not use its parent's pipes."""
    pools: queue.LifoQueue[Pool] = queue.LifoQueue()
    for _ in range(count):
        pools.put(Pool(WORKER, workers=1))
    return pools
