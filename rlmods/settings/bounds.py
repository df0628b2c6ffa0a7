"""Types of settings that carry bounds: `eps: Positive = 1e-6`. The configuration is checked against
them before a part is created, and a part when it is created."""

import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

C = TypeVar("C")


@dataclass(frozen=True)
class Bound:
    """Values that a number may have, and the same in words."""

    words: str
    holds: Callable[[Any], bool]


def between(low: float, high: float) -> Bound:
    """Return the bound of numbers from `low` to `high`."""
    return Bound(f"from {low} to {high}", lambda x: low <= x <= high)


INFINITE = "limit"
Limit = Annotated[float, INFINITE]
"""Type of a setting that infinity switches off. All other numbers are finite."""
ABOVE_0 = Bound("above 0", lambda x: x > 0)
ABOVE_1 = Bound("above 1", lambda x: x > 1)
AT_LEAST_0 = Bound("at least 0", lambda x: x >= 0)
AT_LEAST_1 = Bound("at least 1", lambda x: x >= 1)

Positive = Annotated[float, ABOVE_0]
NonNegative = Annotated[float, AT_LEAST_0]
Fraction = Annotated[float, between(0, 1)]
ProperFraction = Annotated[float, Bound("at least 0 and below 1", lambda x: 0 <= x < 1)]
PositiveFraction = Annotated[float, Bound("above 0 and at most 1", lambda x: 0 < x <= 1)]
PositiveLimit = Annotated[Limit, ABOVE_0]
NonNegativeLimit = Annotated[Limit, AT_LEAST_0]
Count = Annotated[int, AT_LEAST_1]
NonNegativeInt = Annotated[int, AT_LEAST_0]

NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}
"""Types of a number, with numbers of numpy."""
TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "null",
}


def bounded(group: str) -> Callable[[type[C]], type[C]]:
    """Return a decorator of dataclasses, below `@dataclass`: their fields, and the fields of
    subclasses, are checked by their types before `__post_init__`.

    A part that is created with another value raises ValueError("group.field=value: must be
    WORDS").

    Raises:
        TypeError: it stands above `@dataclass`, which would leave it without effect.
    """

    def decorate(kind: type[C]) -> type[C]:
        if "__dataclass_fields__" in vars(kind):
            raise TypeError(f"{kind.__name__}: write @bounded below @dataclass")
        finish = getattr(kind, "__post_init__", None)

        def check(part: Any) -> None:
            for name, annotation in field_types(type(part)).items():
                allowed = mismatch(getattr(part, name), annotation)
                check_bounds(part, group, {name: (allowed is None, str(allowed))})
            if finish is not None:
                finish(part)

        kind.__post_init__ = check  # type: ignore[attr-defined]
        return kind

    return decorate


def mismatch(value: object, annotation: object) -> str | None:
    """Return the allowed values in words if `value` is not one of them, else None. A whole number
    is also allowed for a float."""
    origin = get_origin(annotation)
    if origin is Literal:
        allowed = get_args(annotation)
        is_allowed = any(value == x and type(value) is type(x) for x in allowed)
        return None if is_allowed else f"one of {', '.join(map(str, allowed))}"
    if origin in (Union, UnionType):
        mismatches = [mismatch(value, member) for member in get_args(annotation)]
        return None if None in mismatches else " or ".join(text for text in mismatches if text)
    kind, *marks = get_args(annotation) if origin is Annotated else (annotation,)
    if kind in TYPE_NAMES:  # others are left to the dataclass
        kinds = NUMBERS.get(kind, kind)
        is_valid = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
        if not is_valid:
            return TYPE_NAMES[kind]
    is_finite = not isinstance(value, numbers.Real) or math.isfinite(value)
    if not is_finite and not (INFINITE in marks and value == math.inf):
        return "a finite number"
    bounds = [mark for mark in marks if isinstance(mark, Bound)]
    return next((bound.words for bound in bounds if not bound.holds(value)), None)


def _resolved(kind: Any) -> dict[str, Any]:
    types: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        names = vars(sys.modules[base.__module__])
        for name, annotation in inspect.get_annotations(base).items():
            single = SimpleNamespace(__annotations__={name: annotation})
            with suppress(NameError, AttributeError, TypeError, SyntaxError):
                types |= get_type_hints(single, names, dict(vars(base)), include_extras=True)
    arguments = {}
    for field in fields(kind):
        if field.init and field.name in types:
            annotation = types[field.name]
            arguments[field.name] = annotation | None if field.default is None else annotation
    return arguments


field_types: Callable[[Any], dict[str, Any]] = cache(_resolved)
"""Return the types of the arguments of a dataclass, without those that cannot be evaluated, such as
names that are imported `if TYPE_CHECKING` only. A default of None is always allowed."""


def check_bounds(part: object, group: str, rules: Mapping[str, tuple[bool, str]]) -> None:
    """Check the fields of a configuration group's part, or with the group "" the settings of a
    command. A rule is, by field: whether the value is valid, and the valid values in words.

    Raises: ValueError("group.field=value: must be WORDS") for the first field that is not valid."""
    for name, (valid, words) in rules.items():
        if not valid:
            key = f"{group}.{name}" if group else name
            raise ValueError(f"{key}={getattr(part, name)}: must be {words}")
