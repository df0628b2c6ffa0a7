"""Whether tools are called as they want to be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlmods.reward.json_schema import matched, schema_text
from rlmods.reward.pool import failure_counts
from rlmods.reward.strict_json import parse
from rlmods.types import Prompt, Response, Scores, UserError

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(f"({_OPEN}|{_CLOSE})")


@dataclass(frozen=True)
class ToolCall:
    """Valid tool calls / tool calls, over every `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` after the last `</think>`;
    `without` where there is none. A prompt without tools abstains.

    A call is valid if it is strict JSON (as `JSON` reads it) with these two keys and no other, the prompt has a tool of that name, and the
    arguments are an object that matches its `parameters`, if it has any. A tag without its other half counts as a call that is not. The
    column `calls` says how many of how many. Tools are a list of OpenAI's `{"type": "function", "function": {...}}` or of
    `{"name", "parameters"}`, or that list as JSON text.

    Arguments are matched in worker processes under a deadline. Those that cannot be are invalid, and the response is counted: `timeouts`,
    `errors`; so is a response that calls nothing, `without_call`.

    Raises:
        UserError: settings out of range; tools that are not written so; parameters where the package jsonschema is missing.
    """

    column: str = "tools"
    """Column of the prompt's tools."""
    without: float = 0.0
    """Score of a response that calls no tool."""
    timeout_s: float = 5.0
    """For the calls of one response."""
    batch_timeout_s: float = 300.0
    """For all the responses of one call. What is not matched by then counts under `timeouts`."""
    workers: int = 2
    """Processes, started when a tool's parameters first need them and kept."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("timeout_s", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(f"ToolCall: {name}={getattr(self, name)} is not positive: type a positive one")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        valid: dict[int, int] = {}
        total: dict[int, int] = {}
        pairs: dict[int, list[tuple[str, str]]] = {}
        for row, response in enumerate(responses):
            if (tools := read_tools(response.prompt, self.column)) is None:
                continue
            bodies, torn = split_calls(response.text)
            schemas = [(body, tools[name]) for body in bodies if (name := called(body)) in tools]
            total[row] = len(bodies) + torn
            valid[row] = sum(schema is None for _, schema in schemas)
            if given := [(body, schema) for body, schema in schemas if schema is not None]:
                pairs[row] = given
        outcomes = matched([(given, "arguments") for given in pairs.values()], self.workers, self.timeout_s, self.batch_timeout_s)
        for row, outcome in zip(pairs, outcomes, strict=True):
            valid[row] += outcome.value if outcome.status == "ok" else 0
        shares = {row: valid[row] / calls if calls else self.without for row, calls in total.items()}
        return Scores(
            values=[shares.get(row) for row in range(len(responses))],
            counts={**failure_counts(outcomes), "without_call": sum(not calls for calls in total.values())},
            columns={"calls": [f"{valid[row]}/{total[row]}" if row in total else None for row in range(len(responses))]},
        )


def split_calls(text: str) -> tuple[list[str], int]:
    """What stands in each pair of tags after the last `</think>`, and the number of tags that have no other half."""
    pieces = _TAG.split(text.rpartition("</think>")[2])
    tags, following = pieces[1::2], pieces[2::2]
    bodies = [body for tag, body, after in zip(tags, following, tags[1:], strict=False) if (tag, after) == (_OPEN, _CLOSE)]
    return bodies, len(tags) - 2 * len(bodies)


def called(body: str) -> str | None:
    """The name of the tool that a call is for; None where it is no call."""
    try:
        call = parse(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"} or not isinstance(call["arguments"], dict):
        return None
    return call["name"] if isinstance(call["name"], str) else None


def read_tools(prompt: Prompt, column: str) -> dict[str, str | None] | None:
    """The schema of each tool's parameters by its name, None where it has none; None for a prompt without tools.

    Raises:
        UserError: tools of unknown form.
    """
    given = prompt.meta.get(column)
    where = f"prompt {prompt.id}: column {column!r}"
    advice = "write the tools as JSON text, type reward.column=COLUMN if they are elsewhere"
    try:
        listed = parse(given) if isinstance(given, str) and given else given
        if not listed:
            return None
        functions = [tool.get("function") or tool for tool in listed]
        schemas = {_name(function): function.get("parameters") for function in functions}
    except (ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
        raise UserError(f"{where} is no list of {{name, parameters}}: {advice}") from error
    return {name: schema_text(schema, f"{where}: parameters of {name}", advice) if schema else None for name, schema in schemas.items()}


def _name(function: Mapping[str, Any]) -> str:
    if not isinstance(function["name"], str):
        raise TypeError
    return function["name"]
