"""Rewards for valid JSON and for valid tool calls, validated against JSON schemas."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlmods.errors import UserError
from rlmods.grading.pool import Outcome, failure_counts, shared_pool
from rlmods.grading.strict_json import TARGET, parse, validator
from rlmods.grading.turns import after_thoughts
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Prompt, Response, Scores

BATCH_TIMEOUT_S = 300.0
"""Time limit for all responses of one call."""
WORKERS = 2
"""Worker processes, started at the first schema and kept."""
_FENCED = re.compile(
    r"```[^\S\n]*json[^\S\n]*\n(.*?)(?:^[^\S\n]*```|```[^\S\n]*$|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
@bounded("reward")
class JSON:
    """1.0 if the JSON of a response (`extract_json`) is valid and matches its JSON schema, if there
    is one; else 0.0.

    JSON is parsed strictly by RFC 8259: no NaN, no Infinity, nothing after the value; of equal keys
    the last counts. A prompt's own schema, in the column `column`, takes precedence over the file
    `schema`. Schemas are validated in worker processes with a time limit; nothing is fetched, and
    the keyword `format` is ignored.

    JSON that cannot be checked scores 0.0 and is counted: `timeouts`, `errors` (such as a `$ref`
    that cannot be resolved).

    Raises:
        UserError: a schema that is invalid or cannot be read, or is there without the package
        jsonschema.
    """

    schema: str | None = None
    """A .json file with the schema of every response. null: only the prompts' own schemas, if
    any."""
    column: str | None = "schema"
    """Column of the prompts' own schemas, as objects or as JSON text; it may be empty. null: no
    such column."""
    timeout_s: Positive = 5.0
    """Time limit for one response."""

    def __post_init__(self) -> None:
        _ = self.default  # an invalid schema file is reported now

    @cached_property
    def default(self) -> str | None:
        """Text of the file `schema`."""
        if self.schema is None:
            return None
        try:
            text = Path(self.schema).expanduser().read_text(encoding="utf-8-sig")
        except OSError as error:
            raise UserError(
                f"JSON: schema={self.schema} cannot be read ({error.strerror}): type "
                "reward.schema=FILE.json"
            ) from None
        return schema_text(text, f"JSON: schema={self.schema}", "type reward.schema=FILE.json")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        values: list[float | None] = [0.0] * len(responses)
        pairs: dict[int, tuple[str, str]] = {}
        for row, response in enumerate(responses):
            text = extract_json(response.text)
            schema = self.default
            own = None if self.column is None else response.prompt.meta.get(self.column)
            if own is not None and own != "":
                source = f"prompt {response.prompt.id}: column {self.column!r}"
                advice = "type reward.column=null if the column holds no schemas"
                schema = schema_text(own, source, advice)
            try:
                parse(text)
            except (ValueError, RecursionError):
                continue
            if schema is None:
                values[row] = 1.0
            else:
                pairs[row] = (text, schema)
        calls = [([pair],) for pair in pairs.values()]
        outcomes = match_schemas(calls, self.timeout_s)
        for row, outcome in zip(pairs, outcomes, strict=True):
            values[row] = float(outcome.status == "ok" and outcome.value == 1)
        return Scores(values, counts=failure_counts(outcomes))


def extract_json(text: str) -> str:
    """Return the last ```json block of the first turn after its last `</think>`, or all of that
    text if there is no such block."""
    text = after_thoughts(text)
    blocks: list[str] = _FENCED.findall(text)
    return blocks[-1] if blocks else text


def schema_text(schema: object, source: str, advice: str) -> str:
    """Validate a JSON schema, given as a value or as JSON text, and return it as text.

    Raises:
        UserError: the schema is invalid, or the package jsonschema is missing. The message names
        the `source`, and ends with `advice`.
    """
    if find_spec("jsonschema") is None:
        raise UserError(
            f"{source}: validating a JSON schema needs the package jsonschema: type pip "
            "install 'rlmods[json]'"
        )
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if not isinstance(parse(text), dict | bool):
            raise ValueError("it is neither an object nor true nor false")
        validator(text)
    except Exception as error:  # jsonschema raises several types
        reason = " ".join(str(error).splitlines()[0].split())[:200]
        raise UserError(f"{source} is not a JSON schema ({reason}): {advice}") from None
    return text


def match_schemas(calls: list[tuple[Any, ...]], timeout_s: float) -> list[Outcome]:
    """Run `strict_json.count_matches` on each call's arguments in worker processes. Calls that are
    not done within `BATCH_TIMEOUT_S` are timeouts."""
    pool = shared_pool(TARGET, WORKERS, (("1", "true"),))
    return pool.map(calls, timeout_s=timeout_s, batch_timeout_s=BATCH_TIMEOUT_S)


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
