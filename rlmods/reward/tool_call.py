"""Reward for valid tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.errors import UserError
from rlmods.grading.pool import failure_counts
from rlmods.grading.strict_json import parse
from rlmods.grading.turns import after_thoughts
from rlmods.reward.json_schema import match_schemas, schema_text
from rlmods.types import Prompt, Response, Scores

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(f"({_OPEN}|{_CLOSE})")


@dataclass(frozen=True)
class ToolCall:
    """Fraction of valid calls among all `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
    after the last `</think>`; `without` if there is no call. Abstains for prompts without tools.

    A call is valid if it is strict JSON (as for `JSON`) with exactly these two keys, the prompt has
    a tool of that name, and the arguments are an object that matches the tool's `parameters`, if it
    has any. An unmatched tag counts as an invalid call. The column `calls` is "valid/total". Tools
    are a list of OpenAI's `{"type": "function", "function": {...}}` or of `{"name", "parameters"}`,
    or that list as JSON text.

    Arguments are validated in worker processes with a time limit. If that fails they are invalid,
    and the response is counted under `timeouts` or `errors`; a response without a call is counted
    under `without_call`.

    Raises:
        UserError: settings out of range; tools of another form; parameters without the package
        jsonschema.
    """

    column: str = "tools"
    """Column of the prompts' tools."""
    without: float = 0.0
    """Score of a response without a tool call."""
    timeout_s: float = 5.0
    """Time limit for the calls of one response."""
    batch_timeout_s: float = 300.0
    """Time limit for all responses of one call. Responses not validated by then count as
    `timeouts`."""
    workers: int = 2
    """Worker processes, started at the first tool with parameters and kept."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(
                    f"ToolCall: {name}={getattr(self, name)} is not positive: type a positive one"
                )

    def __call__(self, responses: Sequence[Response]) -> Scores:
        num_valid: dict[int, int] = {}
        num_calls: dict[int, int] = {}
        pairs: dict[int, list[tuple[str, str]]] = {}
        for row, response in enumerate(responses):
            if (tools := read_tools(response.prompt, self.column)) is None:
                continue
            bodies, num_unmatched = split_calls(response.text)
            schemas = [(body, tools[name]) for body in bodies if (name := tool_name(body)) in tools]
            num_calls[row] = len(bodies) + num_unmatched
            num_valid[row] = sum(schema is None for _, schema in schemas)
            if to_check := [(body, schema) for body, schema in schemas if schema is not None]:
                pairs[row] = to_check
        outcomes = match_schemas(
            [(to_check, "arguments") for to_check in pairs.values()],
            self.workers,
            self.timeout_s,
            self.batch_timeout_s,
        )
        for row, outcome in zip(pairs, outcomes, strict=True):
            num_valid[row] += outcome.value if outcome.status == "ok" else 0
        scores = {
            row: num_valid[row] / calls if calls else self.without
            for row, calls in num_calls.items()
        }
        return Scores(
            values=[scores.get(row) for row in range(len(responses))],
            counts={
                **failure_counts(outcomes),
                "without_call": sum(not calls for calls in num_calls.values()),
            },
            columns={
                "calls": [
                    f"{num_valid[row]}/{num_calls[row]}" if row in num_calls else None
                    for row in range(len(responses))
                ]
            },
        )


def split_calls(text: str) -> tuple[list[str], int]:
    """Return the text of each pair of tags after the last `</think>` of the first turn, and the
    number of unmatched tags."""
    pieces = _TAG.split(after_thoughts(text))
    tags, following = pieces[1::2], pieces[2::2]
    bodies = [
        body
        for tag, body, after in zip(tags, following, tags[1:], strict=False)
        if (tag, after) == (_OPEN, _CLOSE)
    ]
    return bodies, len(tags) - 2 * len(bodies)


def tool_name(body: str) -> str | None:
    """Return the name of the called tool; None if `body` is not a valid call."""
    try:
        call = parse(body)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(call, dict)
        or call.keys() != {"name", "arguments"}
        or not isinstance(call["arguments"], dict)
    ):
        return None
    return call["name"] if isinstance(call["name"], str) else None


def read_tools(prompt: Prompt, column: str) -> dict[str, str | None] | None:
    """Return the schema of each tool's parameters by tool name, None for a tool without; None for a
    prompt without tools.

    Raises:
        UserError: tools of another form.
    """
    tools = prompt.meta.get(column)
    source = f"prompt {prompt.id}: column {column!r}"
    advice = (
        "write the tools as JSON text, or type reward.column=COLUMN if they are in another column"
    )
    try:
        listed = parse(tools) if isinstance(tools, str) and tools else tools
        if not listed:
            return None
        functions = [tool.get("function") or tool for tool in listed]
        schemas = {_name(function): function.get("parameters") for function in functions}
    except (ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
        raise UserError(f"{source} is not a list of {{name, parameters}}: {advice}") from error
    return {
        name: schema_text(schema, f"{source}: parameters of {name}", advice) if schema else None
        for name, schema in schemas.items()
    }


def _name(function: Mapping[str, Any]) -> str:
    if not isinstance(function["name"], str):
        raise TypeError
    return function["name"]
