"""Plain values as JSON lines between two processes that do not trust each other: no pickle, no classes of the other process.

Imported by a bare interpreter: uses the standard library only.
"""

import json
from collections.abc import Callable
from typing import Any, BinaryIO

MAX_LINE_BYTES = 16 * 2**20


class ConnectionLostError(Exception):
    """The other process has ended, or has sent an invalid message or one longer than `MAX_LINE_BYTES`."""


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    try:
        stream.write(json.dumps(message).encode() + b"\n")
        stream.flush()
    except BrokenPipeError as error:
        raise ConnectionLostError("the other process has ended") from error


def receive(stream: BinaryIO) -> dict[str, Any]:
    line = stream.readline(MAX_LINE_BYTES + 1)
    if not line.endswith(b"\n"):
        raise ConnectionLostError("the other process has ended" if len(line) <= MAX_LINE_BYTES else "a value too large")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ConnectionLostError("not a message")
    return message


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Return a JSON value for `decode`. Values of subclasses of plain types are sent as the plain type.

    Args:
        other: returns a JSON stand-in for a value that is not plain. Without it, such a value raises TypeError.
    """
    if value is None or isinstance(value, bool | str):
        return value if not isinstance(value, str) else str.__str__(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 2**53 else {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(x, other) for x in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, other), encode(v, other)] for k, v in value.items()]}
    if other is None:
        raise TypeError(f"{type(value).__name__} is not a plain value")
    return {"other": other(value)}


def decode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Return the value from its `encode` form. Raises ValueError for anything else.

    Args:
        other: returns the value for the stand-in of a value that is not plain.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("not an encoded value")
    kind, content = next(iter(value.items()))
    if kind in _SCALARS:
        return _SCALARS[kind](content)
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](decode(x, other) for x in content)
    if kind == "dict":
        return {decode(k, other): decode(v, other) for k, v in content}
    if kind == "other" and other is not None:
        return other(content)
    raise ValueError("not an encoded value")


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda x: int(x, 16),
    "float": float.fromhex,
    "complex": lambda x: complex(*map(float.fromhex, x)),
    "bytes": bytes.fromhex,
}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
