"""Tests of types of settings that carry bounds."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from rlmods.config.schema import SETTINGS
from rlmods.settings.bounds import (
    Count,
    Fraction,
    Limit,
    NonNegative,
    NonNegativeInt,
    NonNegativeLimit,
    Positive,
    PositiveFraction,
    PositiveLimit,
    ProperFraction,
    bounded,
    field_types,
    mismatch,
)

NAN = math.nan
INF = math.inf


@pytest.mark.parametrize(
    ("kind", "valid", "invalid", "words"),
    [
        (Positive, [1e-9, 3, 2.5], [0, 0.0, -1], "above 0"),
        (NonNegative, [0, 0.0, 7.5], [-1e-9, -3], "at least 0"),
        (Fraction, [0, 0.5, 1], [-1e-9, 1.001], "from 0 to 1"),
        (ProperFraction, [0, 0.99], [1, 1.0, -0.1], "at least 0 and below 1"),
        (PositiveFraction, [1e-9, 1], [0, 1.1], "above 0 and at most 1"),
        (Count, [1, 2], [0, -1], "at least 1"),
        (NonNegativeInt, [0, 2], [-1], "at least 0"),
        (NonNegativeLimit, [0, 2.5, INF], [-0.5], "at least 0"),
        (PositiveLimit, [0.1, INF], [0, -0.5], "above 0"),
    ],
)
def test_numbers_within_and_beyond_the_bounds(
    kind: Any, valid: list[float], invalid: list[float], words: str
) -> None:
    assert [mismatch(value, kind) for value in valid] == [None] * len(valid)
    assert [mismatch(value, kind) for value in invalid] == [words] * len(invalid)
    assert mismatch(None, kind | None) is None
    assert mismatch(invalid[0], kind | None) == f"{words} or null"
    assert (
        mismatch(np.float32(valid[0]) if kind not in (Count, NonNegativeInt) else np.int64(3), kind)
        is None
    )
    assert mismatch("1", kind) in ("a number", "a whole number")
    assert mismatch(True, kind) in ("a number", "a whole number")
    assert mismatch(NAN, kind) in ("a finite number", "a whole number")


@pytest.mark.parametrize("kind", [Positive, NonNegative, Annotated[float, "other"], float])
def test_only_a_limit_is_infinite(kind: Any) -> None:
    assert mismatch(INF, kind) == "a finite number"
    assert mismatch(INF, Limit) is None
    assert mismatch(-INF, Limit) == "a finite number"
    assert mismatch(np.float32(INF), kind) == "a finite number"


def test_a_choice_has_the_type_of_what_is_listed() -> None:
    assert mismatch(1, Literal[0, 1]) is None
    for value in (True, 1.0, "1", 2):
        assert mismatch(value, Literal[0, 1]) == "one of 0, 1"


@dataclass(frozen=True)
@bounded("part")
class Part:
    share: Fraction
    mode: Literal["a", "b"] = "a"
    count: Count = None  # type: ignore[assignment]
    inner: Positive = field(init=False)


@dataclass(frozen=True)
class Derived(Part):
    further: Positive = 1.0


@dataclass
@bounded("")
class Computed:
    size: Count = 1

    def __post_init__(self) -> None:
        self.half = 10 // self.size


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Part, {"share": 1.5}, r"^part\.share=1\.5: must be from 0 to 1$"),
        (Part, {"share": 0, "mode": "c"}, r"^part\.mode=c: must be one of a, b$"),
        (Part, {"share": 0, "count": 0}, r"^part\.count=0: must be at least 1 or null$"),
        (Derived, {"share": 2}, r"^part\.share=2"),
        (Derived, {"share": 0, "further": 0}, r"^part\.further=0: must be above 0$"),
        (Computed, {"size": 0}, r"^size=0: must be at least 1$"),
    ],
)
def test_a_part_is_checked_when_it_is_created(
    kind: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**values)


def test_the_decorator_stands_below_the_other() -> None:
    with pytest.raises(TypeError, match="Part: write @bounded below @dataclass"):
        bounded("part")(Part)


def test_a_valid_part_is_what_it_was() -> None:
    part = Derived(0.5, "b", 2, 3)
    assert (part.share, part.mode, part.count, part.further) == (0.5, "b", 2, 3)
    assert not hasattr(part, "inner")
    assert Part(0.5).count is None
    assert Computed(5).half == 2
    with pytest.raises(ValueError, match="share=-1"):
        replace(part, share=-1)


@pytest.mark.parametrize("name", SETTINGS)
def test_no_recipe_loses_the_bounds_of_a_setting_that_it_declares_again(name: str) -> None:
    own = field_types(SETTINGS[name])
    for base in SETTINGS[name].__mro__[1:-1]:
        for key, annotation in field_types(base).items():
            for value in (-1, -1.0, 0, 0.0):
                assert (mismatch(value, own[key]) is None) <= (mismatch(value, annotation) is None)
