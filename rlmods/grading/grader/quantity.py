r"""Quantities in plain letters: `5 m`, `18 km/h`, `25°C`, `2h 30min`, `2.5 million`, `18 per day`,
rewritten with `\text`.

A unit of one letter may be a symbol: `5 m` is a length or 5 times m. So the text is compared first
as it is, and then as a quantity where one of the two texts settles that it is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

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
_SCALE = re.compile(rf"\A({'|'.join(_SCALES)})\b\s*")
_GAP = re.compile(rf"{_SPACES}(?:\\cdot)?{_SPACES}")
_PLAIN = re.compile(_NUMBER, re.ASCII)
MAX_CHARS = 120
"""Longer texts are not read as quantities; this bounds the search for the end of a unit."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with a unit, for the parser."""

    text: str
    kind: Literal["certain", "letter", "letters"]
    r"""certain: `5 cm`, `5\text{ m}`, `5 m/s`. letter: `5 m`, a unit or a symbol apart from its
    number. letters: `5m` or `5 N m`, and `5 K`, which may be thousands."""


class Part(NamedTuple):
    """A number with a unit, as of `1 hour 30 minutes`."""

    value: str
    power: int
    """Power of ten of a word such as "million" before the unit."""
    words: str
    """The unit, "" if there is none."""
    is_glued: bool
    """True if there is no space before the unit."""

    @property
    def unit(self) -> Unit | None:
        return read_unit(self.words or "unit")


def readings(answer: str, gold: str) -> Iterator[tuple[str, str]]:
    """Yield the (answer, gold) to compare: as written, and as quantities.

    Beside a gold without a unit, `5 m` is read as 5 with a unit, but `5m` is not. A gold such as `5
    m` or `5m` is read as a quantity only for an answer with a unit: as the product of a symbol it
    is not 5."""
    yield answer, gold
    given = read_quantity(answer)
    wanted = read_quantity(gold)
    if wanted is None:
        if given is not None and given.kind != "letters":
            yield given.text, gold
    elif given is not None or wanted.kind == "certain":
        yield answer if given is None else given.text, wanted.text


@lru_cache(maxsize=4096)
def read_quantity(text: str) -> Quantity | None:
    """Return a quantity that is the whole text, or all of it after `x =`; None for another text, or
    one without unit or scale.

    Quantities of one kind in descending units, `1 hour 30 minutes`, are one of the first unit.
    """
    if len(text) > MAX_CHARS:
        return None
    label = _LABEL.match(text)
    start = 0 if label is None else label.end()
    rest = _TEXT.sub(r" \1 ", text[start:])
    rest = _TEMPERATURE.sub(_temperature, rest)
    rest = _IN_TOTAL.sub("", rest).rstrip(" .\n")
    parts = [] if rest.endswith(" and") else _parts(rest)
    if not parts or any(part.unit is None for part in parts):
        return None
    value, power, words, is_glued = parts[0]
    if len(parts) > 1:
        total = _total(parts)
        if total is None:
            return None
        value = str(total)
        if total.denominator > 1:
            value = rf"\frac{{{total.numerator}}}{{{total.denominator}}}"
    elif not words and not power and rest == text[start:]:
        return None
    scaled = rf"{value}\cdot 10^{{{power}}}" if power else value
    unit = rf"\text{{ {words}}}" if words else ""
    in_text = _TEXT.search(text, start) is not None
    return Quantity(f"{text[:start]}{scaled}{unit}", _kind(words, is_glued, in_text))


def _parts(text: str) -> list[Part]:
    """Return the numbers with their units that are all of a text, otherwise nothing."""
    parts = []
    position = 0
    while position < len(text):
        match = _QUANTITY.match(text, position)
        if match is None or match.end() == match.end("value") < len(text):
            return []
        words = _GAP.sub(_gap, match["unit"] or "").replace(r"\Omega", "ohm").strip()
        scale = _SCALE.match(words)
        power = 0 if scale is None else _SCALES[scale[1]]
        is_glued = bool(match["unit"]) and not match["space"]
        parts.append(Part(match["value"], power, _SCALE.sub("", words), is_glued))
        position = match.end()
    return parts


def _gap(match: re.Match[str]) -> str:
    return "*" if "cdot" in match[0] else " " * bool(match[0])


def _kind(words: str, is_glued: bool, in_text: bool) -> Literal["certain", "letter", "letters"]:
    names = re.findall("[A-Za-z]+", words)
    if in_text or any(len(name) > 1 for name in names):
        return "certain"
    if is_glued or names == ["K"] or (len(names) > 1 and "/" not in words):
        return "letters"
    return "letter" if len(names) == 1 else "certain"


def _total(parts: Sequence[Part]) -> Fraction | None:
    """Return the sum of quantities in the first unit; None if each is not less than one of the unit
    before it."""
    total = Fraction(0)
    previous: Unit | None = None
    for part in parts:
        plain = part.value.replace(",", "")
        unit = part.unit
        if unit is None or part.power or not part.words or not _PLAIN.fullmatch(plain):
            return None
        size = Fraction(plain) * unit.factor
        if previous is not None:
            is_smaller = max(unit.factor, size) < previous.factor
            if previous.powers != unit.powers or not is_smaller:
                return None
        total += size
        previous = unit
    first = parts[0].unit
    return None if first is None else total / first.factor


def _temperature(match: re.Match[str]) -> str:
    return " celsius" if match[1] else " fahrenheit"
