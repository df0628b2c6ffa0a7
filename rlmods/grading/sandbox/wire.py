"""Plain values as JSON lines between two processes that do not trust each other: no pickle, no
classes of the other process.

Plain values are the numbers, texts, dates and collections of the standard library, and named
tuples. A value arrives as an equal value of the standard library's own type, so its operations are
the standard library's and never code of the sender.

Imported by a bare interpreter: uses the standard library only.
"""

import json
import os
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO

MAX_LINE_BYTES = 16 * 2**20
PLAIN_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        int,
        float,
        complex,
        str,
        bool,
        bytes,
        bytearray,
        list,
        tuple,
        set,
        frozenset,
        dict,
        range,
    )
}
PLAIN_TYPES["NoneType"] = type(None)


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
        raise ConnectionLostError(
            "the other process has ended" if len(line) <= MAX_LINE_BYTES else "a value too large"
        )
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConnectionLostError("not a message") from error
    if not isinstance(message, dict):
        raise ConnectionLostError("not a message")
    return message


def read_job(descriptor: int) -> dict[str, Any]:
    """Return the JSON object from a descriptor, which is then closed."""
    data = b""
    while chunk := os.read(descriptor, 65536):
        data += chunk
    os.close(descriptor)
    return json.loads(data)  # type: ignore[no-any-return]


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Return a JSON value for `decode`. An instance of a subclass of a plain type is sent as the
    plain type, except members of enums.

    Args:
        other: returns a JSON stand-in for a value that is not plain. Without it, such a value
        raises TypeError.
    """
    if value is None or isinstance(value, bool):
        return value
    if other is not None and isinstance(type(value), _loaded("enum", "EnumMeta")):
        return {"other": other(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if abs(number) < 2**53 else {"int": hex(number)}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, tuple) and isinstance(
        fields := getattr(type(value), "_fields", None), tuple
    ):
        items = [encode(x, other) for x in tuple.__iter__(value)]
        return {"namedtuple": [type(value).__name__, list(map(str, fields)), items]}
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return {name: [encode(x, other) for x in kind.__iter__(value)]}
    if isinstance(value, dict):
        return _encode_dict(value, other)
    for name, kind in _VIEWS.items():
        if type(value) is kind:
            return {name: [encode(x, other) for x in value]}
    if isinstance(value, type) and PLAIN_TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    if (form := _encode_scalar(value)) is not None:
        return form
    if type(value).__module__ == "numpy" and (array := getattr(value, "tolist", None)) is not None:
        shape = list(getattr(value, "shape", ()))
        return (
            {"numpy": [str(value.dtype), shape, encode(array(), other)]}
            if shape
            else encode(array(), other)
        )
    if other is None:
        raise TypeError(f"{type(value).__name__} is not a plain value")
    return {"other": other(value)}


def _encode_dict(value: dict[Any, Any], other: Callable[[Any], Any] | None) -> Any:
    items = [[encode(k, other), encode(v, other)] for k, v in dict.items(value)]
    kinds = (
        ("counter", _loaded("collections", "Counter")),
        ("ordereddict", OrderedDict),
        ("defaultdict", defaultdict),
    )
    return {next((name for name, kind in kinds if isinstance(value, kind)), "dict"): items}


def _encode_scalar(value: Any) -> dict[str, Any] | None:
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    for kind in (bytes, bytearray, memoryview):
        if isinstance(value, kind):
            return {"bytearray" if kind is bytearray else "bytes": bytes(value).hex()}
    if isinstance(value, range | slice):
        return {type(value).__name__: [value.start, value.stop, value.step]}
    for name, (module, parts) in _BY_PARTS.items():
        if isinstance(value, _loaded(module, name)):
            return {"parts": [name, [encode(getattr(value, part)) for part in parts]]}
    for name, module in _BY_TEXT.items():
        if isinstance(value, _loaded(module, name)):
            return {"text": [name, str(value)]}
    if isinstance(value, _loaded("datetime", "timezone")):
        return {"timezone": encode(value.utcoffset(None))}
    for name in ("datetime", "date", "time"):  # a datetime is a date
        if isinstance(value, _loaded("datetime", name)):
            return {"isoformat": [name, value.isoformat()]}
    return None


def decode(
    value: Any,
    other: Callable[[Any], Any] | None = None,
    check: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Return the value from its `encode` form. Raises ValueError for anything else.

    Args:
        other: returns the value for the stand-in of a value that is not plain.
        check: applied to named tuples and numpy arrays.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("not an encoded value")
    kind, content = next(iter(value.items()))
    if kind in _SCALARS:
        return _SCALARS[kind](content)
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](decode(x, other, check) for x in content)
    if kind in _VIEWS:
        return _view(kind, [decode(x, other, check) for x in content])
    if kind in _DICTS:
        return _DICTS[kind]({decode(k, other, check): decode(v, other, check) for k, v in content})
    if kind == "namedtuple":
        name, fields, items = content
        return check(
            _named_tuple(str(name), tuple(map(str, fields)))(
                *(decode(x, other, check) for x in items)
            )
        )
    if kind == "numpy":
        dtype, shape, items = content
        return check(import_module("numpy").array(decode(items), dtype=dtype).reshape(shape))
    if kind == "other" and other is not None:
        return other(content)
    raise ValueError("not an encoded value")


_VIEWS: dict[str, Any] = {
    "dict_keys": type({}.keys()),
    "dict_values": type({}.values()),
    "dict_items": type({}.items()),
}
_COLLECTIONS: dict[str, Any] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)
}
_BY_PARTS = {
    "Fraction": ("fractions", ("numerator", "denominator")),
    "timedelta": ("datetime", ("days", "seconds", "microseconds")),
}
_BY_TEXT = {"Decimal": "decimal", "UUID": "uuid", "PurePath": "pathlib"}


def _loaded(module: str, name: str) -> Any:
    """Return a class of a module if the module is loaded, else an empty tuple: no value can be an
    instance of it."""
    return getattr(sys.modules.get(module), name, ())


def _parts(content: Any) -> Any:
    name, parts = content
    return getattr(import_module(_BY_PARTS[name][0]), name)(*map(decode, parts))


def _text(content: Any) -> Any:
    name, text = content
    return getattr(import_module(_BY_TEXT[name]), name)(str(text))


def _isoformat(content: Any) -> Any:
    name, text = content
    if name not in ("time", "date", "datetime"):
        raise ValueError("not an encoded value")
    return getattr(import_module("datetime"), name).fromisoformat(text)


def _view(kind: str, items: list[Any]) -> Any:
    if kind == "dict_keys":
        return dict.fromkeys(items).keys()
    return dict(enumerate(items)).values() if kind == "dict_values" else dict(items).items()


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda x: int(x, 16),
    "float": float.fromhex,
    "complex": lambda x: complex(*map(float.fromhex, x)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda x: range(*x),
    "slice": lambda x: slice(*x),
    "type": PLAIN_TYPES.__getitem__,
    "parts": _parts,
    "text": _text,
    "isoformat": _isoformat,
    "timezone": lambda x: import_module("datetime").timezone(decode(x)),
}
_DICTS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "dict": dict,
    "counter": lambda x: import_module("collections").Counter(x),
    "ordereddict": OrderedDict,
    "defaultdict": lambda x: defaultdict(None, x),
}
