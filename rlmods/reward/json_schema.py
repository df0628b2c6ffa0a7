"""Reward for valid JSON, optionally validated against a JSON schema."""

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
from rlmods.types import Response, Scores

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

    JSON is parsed strictly by RFC 8259: no NaN, no Infinity, nothing after the value; also no
    duplicate keys and no numbers that overflow. A prompt's own schema, in the column `column`,
    takes precedence over the file `schema`. Schemas are validated in worker processes with a time
    limit; nothing is fetched, and the keyword `format` is ignored.

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
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise UserError(
                f"JSON: schema={self.schema} cannot be read ({reason}): type "
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
