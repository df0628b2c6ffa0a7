r"""Units of measurement with their factors, nouns that are counted, and quantities in plain
letters: `5 m`, `18 km/h`, `25°C`, `2h 30min`, `2.5 million`, rewritten with `\text`.

Other words after a number are no units. A unit of one letter may be a symbol: `5 m` is a length or
5 times m. So the text is compared first as it is, and then as a quantity where one of the two texts
settles that it is one."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from rlmods.grading.grader.style import TEXT_COMMAND


@dataclass(frozen=True, slots=True)
class Unit:
    """A product of powers of base units."""

    factor: Fraction
    """Size in base units."""
    powers: frozenset[tuple[str, int]]
    """Base units and their exponents; a counted noun is a base unit of its own."""


_MEASURES: dict[str, dict[str, str]] = {
    "m": {
        "m meter meters metre metres": "1",
        "mm millimeter millimeters millimetre millimetres": "1/1000",
        "cm centimeter centimeters centimetre centimetres": "1/100",
        "dm decimeter decimeters": "1/10",
        "km kilometer kilometers kilometre kilometres": "1000",
        "nm nanometer nanometers": "1/1000000000",
        "in inch inches": "127/5000",
        "ft foot feet": "381/1250",
        "yd yard yards": "1143/1250",
        "mi mile miles": "201168/125",
    },
    "g": {
        "g gram grams": "1",
        "mg milligram milligrams": "1/1000",
        "kg kilogram kilograms": "1000",
        "ton tons tonne tonnes": "1000000",
        "lb lbs pound pounds": "45359237/100000",
        "oz ounce ounces": "45359237/1600000",
    },
    "s": {
        "s sec secs second seconds": "1",
        "ms millisecond milliseconds": "1/1000",
        "min mins minute minutes": "60",
        "h hr hrs hour hours": "3600",
        "day days": "86400",
        "week weeks": "604800",
    },
    "month": {
        "month months": "1",
        "year years yr yrs": "12",
        "decade decades": "120",
        "century centuries": "1200",
    },
    "L": {
        "L l liter liters litre litres": "1",
        "mL ml milliliter milliliters": "1/1000",
        "gal gallon gallons": "473176473/125000000",
        "quart quarts": "473176473/500000000",
        "pint pints": "473176473/1000000000",
        "cup cups": "473176473/2000000000",
    },
    "dollar": {"dollar dollars USD": "1", "cent cents": "1/100"},
    "euro": {"euro euros EUR": "1"},
    "yuan": {"yuan RMB": "1"},
    "rupee": {"rupee rupees Rs": "1"},
    "yen": {"yen": "1"},
    "GBP": {"GBP": "1"},
    "degree": {"degree degrees deg": "1"},
    "rad": {"rad radian radians": "1"},
    "K": {"K kelvin": "1"},
    "celsius": {"celsius": "1"},
    "fahrenheit": {"fahrenheit": "1"},
    "ohm": {"ohm ohms": "1"},
    "Pa": {"Pa pascal pascals": "1", "kPa": "1000"},
    "B": {
        "byte bytes": "1",
        "kB KB": "1000",
        "MB": "1000000",
        "GB": "1000000000",
        "TB": "1000000000000",
    },
    "bit": {"bit bits": "1"},
    "N": {"N newton newtons": "1"},
    "J": {"J joule joules": "1", "kJ": "1000"},
    "W": {"W watt watts": "1", "kW": "1000"},
    "V": {"V volt volts": "1"},
    "A": {"A ampere amperes amp amps": "1"},
    "Hz": {"Hz hertz": "1"},
    "mol": {"mol moles": "1"},
    "": {"unit units": "1"},
}
_COUNTED = (
    "people person;students student;children child;boys boy;girls girl;men man;women "
    "woman;adults adult;players player;teams team;"
    "members member;friends friend;customers customer;workers worker;employees "
    "employee;guests guest;passengers passenger;"
    "apples apple;oranges orange;bananas banana;eggs egg;cookies cookie;cakes "
    "cake;candies candy;pizzas pizza;slices slice;pieces piece;"
    "books book;pages page;pens pen;pencils pencil;words word;letters letter;digits "
    "digit;cards card;coins coin;balls ball;marbles marble;"
    "boxes box;bags bag;bottles bottle;packs pack;packages package;tickets ticket;shirts "
    "shirt;toys toy;stickers sticker;stamps stamp;"
    "flowers flower;trees tree;plants plant;dogs dog;cats cat;birds bird;cows "
    "cow;chickens chicken;horses horse;sheep;fish;animals animal;"
    "cars car;buses bus;trains train;bikes bike;houses house;rooms room;chairs "
    "chair;tables table;seats seat;"
    "ways way;solutions solution;values value;numbers number;integers integer;pairs "
    "pair;triples triple;sets set;subsets subset;"
    "points point;lines line;sides side;edges edge;vertices vertex;faces face;triangles "
    "triangle;squares;rectangles rectangle;"
    "roots root;zeros zero;terms term;factors factor;divisors divisor;primes;outcomes "
    "outcome;arrangements arrangement;"
    "combinations combination;permutations permutation;paths path;games game;steps "
    "step;times time;hits hit;votes vote;tiles tile;"
    "items item;objects object;shares share;rows row;columns column;groups group;classes "
    "class;laps lap;trips trip;servings serving"
)


def _base_units() -> dict[str, Unit]:
    units = {}
    for base, sizes in _MEASURES.items():
        for words, factor in sizes.items():
            unit = Unit(Fraction(factor), frozenset({(base, 1)} if base else ()))
            units.update(dict.fromkeys(words.split(), unit))
    for words in _COUNTED.split(";"):
        unit = Unit(Fraction(1), frozenset({(words.split()[0], 1)}))
        units.update(dict.fromkeys(words.split(), unit))
    return units


_BASE = _base_units()
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "fps": "ft/s"}
_PREFIXES = {
    **{"square": 2, "sq": 2, "cubic": 3, "cu": 3},
    **dict.fromkeys(("different", "distinct", "possible"), 1),
}
"""Words before a unit, with the power that they give it."""
_SUFFIXES = {"squared": 2, "cubed": 3}
SYMBOLS = frozenset("msghLlKJNWVA")
"""Units of one letter: a unit where they are set upright after a number, otherwise a name."""
WORDS = (frozenset(_BASE) - SYMBOLS | frozenset((*_COMPOUND, *_PREFIXES))) - {"in"}
r"""Units that are recognised without `\text`."""
_PART = re.compile(
    r"\s*(?:(?P<over>/|per\b)|(?P<times>\*)"
    r"|(?P<word>[A-Za-z]+)\.?(?:\s*\^\s*\{?(?P<power>-?\d)\}?)?(?:\s*(?P<suffix>squared|cubed)\b)?"
    r")\s*",
    re.ASCII,
)


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit | None:
    """Return the unit written as `km/h`, `square meters`, `cm^2` or `miles per hour`; None for
    other words."""
    position = 0
    sign = 1
    prefix = 1
    factor = Fraction(1)
    powers = Counter[str]()
    unit = None
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            return None
        position = match.end()
        if match["over"]:
            sign = -1
        elif match["word"] in _PREFIXES:
            prefix = _PREFIXES[match["word"]]
        elif match["word"]:
            unit = _base_unit(match["word"])
            if unit is None:
                return None
            power = sign * prefix * int(match["power"] or 1) * _SUFFIXES.get(match["suffix"], 1)
            prefix = 1
            factor *= unit.factor**power
            for base, exponent in unit.powers:
                powers[base] += power * exponent
    if unit is None or prefix != 1:
        return None
    return Unit(factor, frozenset((base, power) for base, power in powers.items() if power))


def _base_unit(word: str) -> Unit | None:
    if word in _COMPOUND:
        return read_unit(_COMPOUND[word])
    return _BASE.get(word) or (_BASE.get(word.lower()) if len(word) > 2 else None)


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
_CELSIUS = re.compile(r"(?:°|\bdegrees?\b)\s*[Cc](?:elsius)?\b")
_FAHRENHEIT = re.compile(r"(?:°|\bdegrees?\b)\s*[Ff](?:ahrenheit)?\b")
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
    unit: Unit | None
    """None if the words are no unit."""


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
    rest = TEXT_COMMAND.sub(r" \1 ", text[start:])
    rest = _CELSIUS.sub(" celsius", rest)
    rest = _FAHRENHEIT.sub(" fahrenheit", rest)
    rest = _IN_TOTAL.sub("", rest).rstrip(" .\n")
    parts = [] if rest.endswith(" and") else _parts(rest)
    if not parts or any(part.unit is None for part in parts):
        return None
    value, power, words, is_glued, _ = parts[0]
    if len(parts) > 1:
        total = _total(parts)
        if total is None:
            return None
        value = str(total)
    elif not words and not power and rest == text[start:]:
        return None
    scaled = rf"{value}\cdot 10^{{{power}}}" if power else value
    unit = rf"\text{{ {words}}}" if words else ""
    in_text = TEXT_COMMAND.search(text, start) is not None
    return Quantity(f"{text[:start]}{scaled}{unit}", _kind(words, is_glued, in_text))


def _parts(text: str) -> list[Part]:
    """Return the numbers with their units that are all of a text, otherwise nothing."""
    parts = []
    position = 0
    while position < len(text):
        match = _QUANTITY.match(text, position)
        if match is None or match.end() == match.end("value") < len(text):
            return []
        words = (
            _GAP.sub(
                lambda gap: "*" if "cdot" in gap[0] else " " * bool(gap[0]), match["unit"] or ""
            )
            .replace(r"\Omega", "ohm")
            .strip()
        )
        scale = _SCALE.match(words)
        power = 0 if scale is None else _SCALES[scale[1]]
        words = _SCALE.sub("", words)
        is_glued = bool(match["unit"]) and not match["space"]
        parts.append(Part(match["value"], power, words, is_glued, read_unit(words or "unit")))
        position = match.end()
    return parts


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
    values = [part.value.replace(",", "") for part in parts]
    units = [part.unit for part in parts if part.unit is not None and part.words and not part.power]
    if len(units) < len(parts) or not all(map(_PLAIN.fullmatch, values)):
        return None
    sizes = [Fraction(value) * unit.factor for value, unit in zip(values, units, strict=True)]
    for before, unit, size in zip(units, units[1:], sizes[1:], strict=False):
        if before.powers != unit.powers or max(unit.factor, size) >= before.factor:
            return None
    return sum(sizes) / units[0].factor
