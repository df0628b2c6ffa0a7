"""JSON read to the letter, and matched with JSON schemas in worker processes. Starts without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

TARGET = f"{__name__}:matching"


def parse(text: str) -> Any:
    """The value that `text` is. Raises: ValueError for what is no JSON (RFC 8259, and so NaN and Infinity), a key given twice, and a number
    too large to hold; RecursionError for what is nested too deep."""
    return _DECODER.decode(text)


def matching(pairs: Sequence[tuple[str, str]], key: str | None = None) -> int:
    """How many of the (JSON, schema) match. With `key`, what the JSON object holds under it has to."""
    values = [(parse(text), schema) for text, schema in pairs]
    return sum(validator(schema).is_valid(value if key is None else value[key]) for value, schema in values)


@lru_cache(maxsize=1024)
def validator(schema: str) -> Any:
    """Of the draft that the schema names, else 2020-12. It fetches nothing: a `$ref` elsewhere is an error. Raises: what
    `jsonschema` does for an invalid schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    value = parse(schema)
    kind = validator_for(value, default=Draft202012Validator)
    kind.check_schema(value)
    return kind(value, registry=Registry())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:20]} is too large")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_float=_finite, parse_constant=_refuse)
