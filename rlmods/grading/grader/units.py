"""Units of measurement with their dimensions and factors, and nouns that are counted. Other words
after a number are no units."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Unit:
    """A product of powers of base units."""

    factor: Fraction
    """Size in base units."""
    powers: frozenset[tuple[str, int]]
    """Base units and their exponents; a counted noun is a base unit of its own."""


_MEASURES: dict[str, tuple[str, dict[str, str]]] = {
    "m": (
        "length",
        {
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
    ),
    "g": (
        "mass",
        {
            "g gram grams": "1",
            "mg milligram milligrams": "1/1000",
            "kg kilogram kilograms": "1000",
            "ton tons tonne tonnes": "1000000",
            "lb lbs pound pounds": "45359237/100000",
            "oz ounce ounces": "45359237/1600000",
        },
    ),
    "s": (
        "time",
        {
            "s sec secs second seconds": "1",
            "ms millisecond milliseconds": "1/1000",
            "min mins minute minutes": "60",
            "h hr hrs hour hours": "3600",
            "day days": "86400",
            "week weeks": "604800",
        },
    ),
    "month": (
        "calendar",
        {
            "month months": "1",
            "year years yr yrs": "12",
            "decade decades": "120",
            "century centuries": "1200",
        },
    ),
    "L": (
        "volume",
        {
            "L l liter liters litre litres": "1",
            "mL ml milliliter milliliters": "1/1000",
            "gal gallon gallons": "473176473/125000000",
            "quart quarts": "473176473/500000000",
            "pint pints": "473176473/1000000000",
            "cup cups": "473176473/2000000000",
        },
    ),
    "dollar": ("money", {"dollar dollars USD": "1", "cent cents": "1/100"}),
    "euro": ("money", {"euro euros EUR": "1"}),
    "yuan": ("money", {"yuan RMB": "1"}),
    "rupee": ("money", {"rupee rupees Rs": "1"}),
    "yen": ("money", {"yen": "1"}),
    "GBP": ("money", {"GBP": "1"}),
    "degree": ("angle", {"degree degrees deg": "1"}),
    "rad": ("angle", {"rad radian radians": "1"}),
    "K": ("temperature", {"K kelvin": "1"}),
    "celsius": ("temperature", {"celsius": "1"}),
    "fahrenheit": ("temperature", {"fahrenheit": "1"}),
    "ohm": ("resistance", {"ohm ohms": "1"}),
    "Pa": ("pressure", {"Pa pascal pascals": "1", "kPa": "1000"}),
    "B": (
        "data",
        {
            "byte bytes": "1",
            "kB KB": "1000",
            "MB": "1000000",
            "GB": "1000000000",
            "TB": "1000000000000",
        },
    ),
    "bit": ("data", {"bit bits": "1"}),
    "N": ("force", {"N newton newtons": "1"}),
    "J": ("energy", {"J joule joules": "1", "kJ": "1000"}),
    "W": ("power", {"W watt watts": "1", "kW": "1000"}),
    "V": ("voltage", {"V volt volts": "1"}),
    "A": ("current", {"A ampere amperes amp amps": "1"}),
    "Hz": ("frequency", {"Hz hertz": "1"}),
    "mol": ("substance", {"mol moles": "1"}),
    "": ("number", {"unit units": "1"}),
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
    for base, (_, sizes) in _MEASURES.items():
        for words, factor in sizes.items():
            unit = Unit(Fraction(factor), frozenset({(base, 1)} if base else ()))
            units.update(dict.fromkeys(words.split(), unit))
    for words in _COUNTED.split(";"):
        unit = Unit(Fraction(1), frozenset({(words.split()[0], 1)}))
        units.update(dict.fromkeys(words.split(), unit))
    return units


_BASE = _base_units()
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "fps": "ft/s"}
_PREFIXES = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
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
