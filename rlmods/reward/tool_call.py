"""Reward for valid tool calls."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.errors import UserError
from rlmods.grading.pool import failure_counts
from rlmods.grading.strict_json import parse
from rlmods.grading.turns import after_thoughts
from rlmods.reward.json_schema import match_schemas, schema_text
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Prompt, Response, Scores

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_TAG = re.compile(f"({_OPEN}|{_CLOSE})")


@dataclass(frozen=True)
@bounded("reward")
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
        UserError: tools of another form, or parameters without the package jsonschema.
    """

    column: str = "tools"
    """Column of the prompts' tools."""
    without: float = 0.0
    """Score of a response without a tool call."""
    timeout_s: Positive = 5.0
    """Time limit for the calls of one response."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        num_valid: dict[int, int] = {}
        num_calls: dict[int, int] = {}
        pairs: dict[int, list[tuple[str, str]]] = {}
        for row, response in enumerate(responses):
            tools = read_tools(response.prompt, self.column)
            if tools is None:
                continue
            bodies, num_unmatched = split_calls(response.text)
            num_calls[row] = len(bodies) + num_unmatched
            num_valid[row] = 0
            for body in bodies:
                name = tool_name(body)
                schema = tools.get(name) if name is not None else None
                if schema is not None:
                    pairs.setdefault(row, []).append((body, schema))
                elif name in tools:
                    num_valid[row] += 1
        calls = [(row_pairs, "arguments") for row_pairs in pairs.values()]
        outcomes = match_schemas(calls, self.timeout_s)
        for row, outcome in zip(pairs, outcomes, strict=True):
            num_valid[row] += outcome.value if outcome.status == "ok" else 0
        values: list[float | None] = [None] * len(responses)
        shown: list[str | None] = [None] * len(responses)
        for row, total in num_calls.items():
            values[row] = num_valid[row] / total if total else self.without
            shown[row] = f"{num_valid[row]}/{total}"
        without_call = list(num_calls.values()).count(0)
        return Scores(
            values,
            counts={**failure_counts(outcomes), "without_call": without_call},
            columns={"calls": shown},
        )


def split_calls(text: str) -> tuple[list[str], int]:
    """Return the text of each pair of tags after the last `</think>` of the first turn, and the
    number of unmatched tags."""
    pieces = _TAG.split(after_thoughts(text))
    tags = pieces[1::2]
    following = pieces[2::2]
    bodies = []
    for tag, body, next_tag in zip(tags, following, tags[1:], strict=False):
        if (tag, next_tag) == (_OPEN, _CLOSE):
            bodies.append(body)
    return bodies, len(tags) - 2 * len(bodies)


def tool_name(body: str) -> str | None:
    """Return the name of the called tool; None if `body` is not a valid call."""
    try:
        call = parse(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        return None
    is_call = isinstance(call["name"], str) and isinstance(call["arguments"], dict)
    return call["name"] if is_call else None


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
        schemas = {function["name"]: function.get("parameters") for function in functions}
    except (ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
        raise UserError(f"{source} is not a list of {{name, parameters}}: {advice}") from error
    return {
        name: schema_text(schema, f"{source}: parameters of {name}", advice) if schema else None
        for name, schema in schemas.items()
    }
