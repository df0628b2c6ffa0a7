"""Plain values as JSON lines between two processes that do not trust each other: no pickle, no
classes of the other process.

Plain values are None, booleans, numbers, texts, bytes, dates and collections of them. An instance
of a subclass arrives as the plain value it extends, so that its operations are the standard
library's and never code of the sender. Any other object stays where it is and is sent as a number.

Imported by a bare interpreter: uses the standard library only.
"""

import json
import os
from collections import Counter, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time as time_of_day, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO

MAX_LINE_BYTES = 16 * 2**20


class ConnectionLostError(Exception):
    """The other process has ended, or has sent an invalid message or one longer than
    `MAX_LINE_BYTES`."""


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    line = json.dumps(message).encode() + b"\n"
    try:
        stream.write(line)
        stream.flush()
    except (BrokenPipeError, ValueError) as error:
        raise ConnectionLostError("the other process has ended") from error


def receive(stream: BinaryIO) -> dict[str, Any]:
    line = stream.readline(MAX_LINE_BYTES + 1)
    if not line.endswith(b"\n"):
        raise ConnectionLostError("the other process has ended, or its message is too long")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConnectionLostError("not a message") from error
    if not isinstance(message, dict):
        raise ConnectionLostError("not a message")
    return message


def read_job(descriptor: int) -> dict[str, Any]:
    """Return the JSON object from a descriptor, which is then closed."""
    with os.fdopen(descriptor, "rb") as stream:
        return json.load(stream)  # type: ignore[no-any-return]


COLLECTIONS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
DICTS: dict[str, Any] = {"Counter": Counter, "dict": dict}
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, int, float, str, bytes, list, tuple, set, dict)
}


def _bounds(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step]


ATOMS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),
    "complex": (complex, str, complex),
    "Fraction": (Fraction, str, Fraction),
    "Decimal": (Decimal, str, Decimal),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "range": (range, _bounds, lambda bounds: range(*bounds)),
    "slice": (slice, _bounds, lambda bounds: slice(*bounds)),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),  # before `date`, its base
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time_of_day, time_of_day.isoformat, time_of_day.fromisoformat),
    "timedelta": (
        timedelta,
        lambda span: [span.days, span.seconds, span.microseconds],
        lambda parts: timedelta(*parts),
    ),
}
"""Types without items: the type, and the functions to a JSON value and back."""


def encode(value: Any, refer: Callable[[Any], int]) -> Any:
    """Return a JSON value for `decode`.

    Args:
        refer: returns the number of an object that is not plain.
    """
    if isinstance(value, Enum):
        return {"object": refer(value)}
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple):
        fields = list(value._fields)  # type: ignore[attr-defined]
        return {"namedtuple": [fields, encode(tuple(value), refer)]}
    for name, kind in COLLECTIONS.items():
        if isinstance(value, kind):
            return {name: [encode(item, refer) for item in kind.__iter__(value)]}
    for name, kind in DICTS.items():
        if isinstance(value, kind):
            pairs = dict.items(value)
            return {name: [[encode(key, refer), encode(item, refer)] for key, item in pairs]}
    for name, (kind, to_json, _) in ATOMS.items():
        if isinstance(value, kind):
            return {name: to_json(value)}
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    if type(value).__module__ == "numpy" and callable(getattr(value, "tolist", None)):
        items = encode(value.tolist(), refer)
        return {"array": [str(value.dtype), items]} if value.ndim else items
    return {"object": refer(value)}


def decode(value: object, find: Callable[[int], Any]) -> Any:
    """Return the value from its `encode` form. Raises ValueError for anything else.

    Args:
        find: returns the object of a number.
    """
    if value is None or isinstance(value, bool | float | str):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("not an encoded value")
    [(kind, content)] = value.items()
    if kind == "object":
        return find(int(content))
    if kind in ATOMS:
        return ATOMS[kind][2](content)
    if kind in COLLECTIONS:
        return COLLECTIONS[kind](decode(item, find) for item in content)
    if kind in DICTS:
        return DICTS[kind]({decode(key, find): decode(item, find) for key, item in content})
    if kind == "type":
        return TYPES[content]
    if kind == "namedtuple":
        fields, items = content
        return named_tuple(tuple(fields))(*decode(items, find))
    if kind == "array":
        dtype, items = content
        return import_module("numpy").array(decode(items, find), dtype=dtype)
    raise ValueError("not an encoded value")


_CONTAINER_METHODS = """
append pop add remove clear insert update extend get keys values items copy popitem setdefault
discard sort reverse
"""
_METHODS = map(dir, (str, bytes, list, tuple, dict, set, int, float, complex))
PLAIN_METHODS = {"equals"}.union(*_METHODS) - set(_CONTAINER_METHODS.split())
"""Methods of plain types, and of packages, that compare or convert; without those that containers
of the code have too."""


@cache
def named_tuple(fields: tuple[str, ...]) -> Any:
    """Return a class of named tuples. Raises ValueError for a field that hides a method of a plain
    type."""
    if PLAIN_METHODS.intersection(fields):
        raise ValueError("a named tuple with a method of a plain type as a field")
    return namedtuple("namedtuple", fields)


def refuse(value: object) -> Any:
    """Stand in for `refer` and `find` where all values must be plain. Raises TypeError."""
    raise TypeError(f"{type(value).__name__} is not a plain value")
