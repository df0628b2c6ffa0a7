r"""Quantities in plain letters: `5 m`, `18 km/h`, `25°C`, `2h 30min`, `2.5 million`, `18 per day`,
rewritten with `\text`.

A unit of one letter may be a symbol: `5 m` is a length or 5 times m. So the text is compared first
as it is, and then as a quantity where one of the two texts settles that it is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from rlmods.grading.grader.units import Unit, read_unit

_SPACE = r"(?:[\s~]|\\[ ,;:])"
_SPACES = rf"{_SPACE}*"
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_POWER_OF_TEN = r"\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*-?\d{1,3}\s*\}|\d)"
_VALUE = rf"[-+]?\s*(?:\\[dt]?frac\{{\d+\}}\{{\d+\}}|{_NUMBER}(?:{_POWER_OF_TEN}|/\d+)?)"
_WORD = r"(?!and\b)(?:[A-Za-z]+\.?|\\Omega)(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d))?"
_OVER = rf"{_SPACES}/{_SPACES}"
_UNIT = rf"(?:/\s*)?{_WORD}(?:(?:{_OVER}|{_SPACES}(?:\\cdot|\*)\s*|{_SPACE}+){_WORD})*"
_QUANTITY = re.compile(
    rf"(?P<value>{_VALUE})(?P<space>{_SPACES})(?P<unit>{_UNIT})?{_SPACES}(?:and\b\s*)?", re.ASCII
)
_LABEL = re.compile(r"[^=<>\d]{1,40}=\s*")
_IN_TOTAL = re.compile(r"\s+(?:in total|in all|altogether)\Z")
_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox|operatorname|rm)\*?\s*\{([^{}]*)\}")
_TEMPERATURE = re.compile(r"(?:°|\bdegrees?\b)\s*(?:([Cc])(?:elsius)?|[Ff](?:ahrenheit)?)\b")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"({'|'.join(_SCALES)})\b\s*")
MAX_CHARS = 120
"""Longer texts are not read as quantities; this bounds the search for the end of a unit."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with a unit, for the parser."""

    text: str
    kind: Literal["certain", "letter", "letters"]
    r"""certain: `5 cm`, `5\text{ m}`, `5 m/s`. letter: `5 m`, a unit or a symbol apart from its
    number. letters: `5m` or `5 N m`, and `5 K`, which may be thousands."""


def readings(answer: str, gold: str) -> Iterator[tuple[str, str]]:
    """Yield the (answer, gold) to compare: as written, and as quantities.

    Beside a gold without a unit, `5 m` is read as 5 with a unit, but `5m` is not. A gold such as `5
    m` or `5m` is read as a quantity only for an answer with a unit: as the product of a symbol it
    is not 5."""
    yield answer, gold
    given, wanted = read_quantity(answer), read_quantity(gold)
    if (wanted is None and given is not None and given.kind != "letters") or (
        wanted is not None and (given is not None or wanted.kind == "certain")
    ):
        yield answer if given is None else given.text, gold if wanted is None else wanted.text


@lru_cache(maxsize=4096)
def read_quantity(text: str) -> Quantity | None:
    """Return a quantity that is the whole text, or all of it after `x =`; None for another text, or
    one without unit or scale.

    Quantities of one kind in descending units, `1 hour 30 minutes`, are one of the first unit.
    """
    if len(text) > MAX_CHARS:
        return None
    start = 0 if (label := _LABEL.match(text)) is None else label.end()
    rest = _IN_TOTAL.sub(
        "", _TEMPERATURE.sub(_temperature, _TEXT.sub(r" \1 ", text[start:]))
    ).rstrip(" .\n")
    position, parts = 0, list[tuple[str, str, str]]()
    while position < len(rest):
        match = _QUANTITY.match(rest, position)
        if match is None or match.end() == match.end("value") < len(rest):
            return None
        parts.append(
            (
                match["value"],
                match["unit"] or "",
                "glued" if match["unit"] and not match["space"] else "",
            )
        )
        position = match.end()
    units = [_scaled_unit(unit) for _, unit, _ in parts]
    if not parts or any(unit is None for _, _, unit in units) or rest.endswith(" and"):
        return None
    value, (power, words, _) = parts[0][0], units[0]
    if len(parts) > 1:
        total = _compound([value for value, _, _ in parts], units)
        if total is None:
            return None
        value = (
            rf"\frac{{{total.numerator}}}{{{total.denominator}}}"
            if total.denominator > 1
            else str(total)
        )
    elif not parts[0][1] and rest == text[start:]:
        return None
    scaled = rf"{value}\cdot 10^{{{power}}}" if power else value
    in_text = text[start:] != rest and _TEXT.search(text, start) is not None
    return Quantity(
        f"{text[:start]}{scaled}" + (rf"\text{{ {words}}}" if words else ""),
        _kind(words, parts[0][2], in_text),
    )


def _kind(words: str, glued: str, in_text: bool) -> Literal["certain", "letter", "letters"]:
    names = re.findall("[A-Za-z]+", words)
    if in_text or any(len(name) > 1 for name in names):
        return "certain"
    if glued or names == ["K"] or (len(names) > 1 and "/" not in words):
        return "letters"
    return "certain" if len(names) != 1 else "letter"


def _scaled_unit(text: str) -> tuple[int, str, Unit | None]:
    """Return the power of ten of a leading "million", the unit without it, and its size."""
    text = re.sub(
        _SPACES + r"(?:\\cdot)?" + _SPACES,
        lambda match: "*" if "cdot" in match[0] else " " * bool(match[0]),
        text,
    )
    words = text.replace(r"\Omega", "ohm").strip()
    scale = _SCALE.match(words)
    words = words if scale is None else words[scale.end() :]
    return (
        0 if scale is None else _SCALES[scale[1]],
        words,
        read_unit(words) if words else read_unit("unit"),
    )


def _compound(values: list[str], units: list[tuple[int, str, Unit | None]]) -> Fraction | None:
    """Return the sum of quantities in the first unit; None if each is not less than one of the unit
    before it."""
    total, previous = Fraction(0), None
    for value, (power, words, unit) in zip(values, units, strict=True):
        assert unit is not None
        plain = value.replace(",", "")
        if power or not words or re.fullmatch(_NUMBER, plain, re.ASCII) is None:
            return None
        size = Fraction(plain) * unit.factor
        if previous is not None and (
            previous.powers != unit.powers
            or not unit.factor < previous.factor
            or not size < previous.factor
        ):
            return None
        total, previous = total + size, unit
    assert units[0][2] is not None
    return total / units[0][2].factor


def _temperature(match: re.Match[str]) -> str:
    return " celsius" if match[1] else " fahrenheit"
