"""Whether a response is valid JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from rlmods.reward.pool import Outcome, failure_counts, shared_pool
from rlmods.reward.strict_json import TARGET, parse, validator
from rlmods.types import Prompt, Response, Scores, UserError

_FENCED = re.compile(r"```[^\S\n]*json[^\S\n]*\n(.*?)(?:^[^\S\n]*```|```[^\S\n]*$|\Z)", re.DOTALL | re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class JSON:
    """1.0 where the JSON of a response (`extract_json`) is valid, and matches the JSON schema if there is one; else 0.0.

    JSON is what RFC 8259 says: no NaN, no Infinity, nothing after the value; and no key twice in one object, no number too large to hold.
    A prompt's own schema, in the column `column`, comes before that of the file `schema`. Schemas are matched in worker processes under a
    deadline; they fetch nothing, and their `format` says nothing.

    What cannot be judged is 0.0 and counted: `unread` (too long, or nested too deep), `timeouts`, `errors` (such as a `$ref` that leads
    nowhere).

    Raises:
        UserError: settings out of range; a schema that is none, or that cannot be read; a schema where the package jsonschema is missing.
    """

    schema: str | None = None
    """A .json file with the schema of every response. null: the prompts' own, or none."""
    column: str | None = "schema"
    """Column of the prompts' own schemas, as objects or as JSON text; a prompt may have none. null: no column is one."""
    max_characters: int = 100_000
    """Longer JSON is not read."""
    timeout_s: float = 5.0
    """For one response."""
    batch_timeout_s: float = 300.0
    """For all the responses of one call. What is not matched by then counts under `timeouts`."""
    workers: int = 2
    """Processes, started when a schema first needs them and kept."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("max_characters", "timeout_s", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(f"JSON: {name}={getattr(self, name)} is not positive: type a positive one")
        _ = self.default  # a file that is no schema is found now

    @cached_property
    def default(self) -> str | None:
        """The text of the file `schema`."""
        if self.schema is None:
            return None
        try:
            text = Path(self.schema).expanduser().read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise UserError(f"JSON: schema={self.schema} cannot be read ({reason}): type reward.schema=FILE.json") from None
        return schema_text(text, f"JSON: schema={self.schema}", "type reward.schema=FILE.json")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        texts = [extract_json(response.text) for response in responses]
        valid = [self._valid(text) for text in texts]
        schemas = [self._schema(response.prompt) for response in responses]
        pairs = {row: (texts[row], schema) for row, schema in enumerate(schemas) if schema is not None and valid[row]}
        outcomes = matched([([pair],) for pair in pairs.values()], self.workers, self.timeout_s, self.batch_timeout_s)
        values = [float(ok is True) for ok in valid]
        for row, outcome in zip(pairs, outcomes, strict=True):
            values[row] = float(outcome.status == "ok" and outcome.value == 1)
        return Scores(values, counts={"unread": valid.count(None), **failure_counts(outcomes)})

    def _valid(self, text: str) -> bool | None:
        """None: it cannot be told."""
        if len(text) > self.max_characters:
            return None
        try:
            parse(text)
        except RecursionError:
            return None
        except ValueError:
            return False
        return True

    def _schema(self, prompt: Prompt) -> str | None:
        own = None if self.column is None else prompt.meta.get(self.column)
        if own is None or own == "":
            return self.default
        return schema_text(own, f"prompt {prompt.id}: column {self.column!r}", "type reward.column=null if it is not meant to be one")


def extract_json(text: str) -> str:
    """The last block fenced as ```json after the last `</think>`, or all that follows it where there is none."""
    said = text.rpartition("</think>")[2]
    blocks: list[str] = _FENCED.findall(said)
    return blocks[-1] if blocks else said


def schema_text(schema: Any, where: str, advice: str) -> str:
    """A JSON schema, given as a value or as JSON text, as text.

    Raises:
        UserError: it is none, or nothing can match it as jsonschema is missing; says `where` it stands.
    """
    if find_spec("jsonschema") is None:
        raise UserError(f"{where}: matching a JSON schema needs the package jsonschema: type pip install 'rlmods[json]'")
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if not isinstance(parse(text), dict | bool):
            raise ValueError("it is neither an object nor true nor false")
        validator(text)
    except Exception as error:  # whatever jsonschema makes of it
        said = " ".join(str(getattr(error, "message", error)).split())[:200]
        raise UserError(f"{where} is no JSON schema ({said}): {advice}") from None
    return text


def matched(calls: list[tuple[Any, ...]], workers: int, timeout_s: float, batch_timeout_s: float) -> list[Outcome]:
    """`strict_json.matching` of each."""
    if not calls:
        return []
    pool = shared_pool(TARGET, workers, os.getpid(), (("1", "true"),))
    return pool.map(calls, timeout_s=timeout_s, batch_timeout_s=batch_timeout_s)
