"""Strict JSON parser, and JSON schema validation for worker processes. Does not import torch."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

TARGET = f"{__name__}:count_matches"


def parse(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: invalid JSON (by RFC 8259, so also NaN and Infinity).
        RecursionError: too many levels of nesting.
    """
    return json.loads(text, parse_constant=_reject_constant)


def count_matches(pairs: Sequence[tuple[str, str]], key: str | None = None) -> int:
    """Number of (JSON, schema) pairs that match. With `key`, the schema applies to the value of
    that key of the JSON object."""
    values = [(parse(text), schema) for text, schema in pairs]
    return sum(
        validator(schema).is_valid(value if key is None else value[key]) for value, schema in values
    )


@lru_cache(maxsize=1024)
def validator(schema: str) -> Any:
    """Validator for a schema, of the draft that it names, else 2020-12. Nothing is fetched: an
    external `$ref` is an error.

    Raises: the errors of `jsonschema` for an invalid schema.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    value = parse(schema)
    validator_class = validator_for(value, default=Draft202012Validator)
    validator_class.check_schema(value)
    return validator_class(value, registry=Registry())


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")
