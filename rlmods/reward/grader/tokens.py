"""Tokenizer of answers: LaTeX, plain maths and the words around them. One pass, no evaluation, bounded sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_TOKENS = 400
MAX_DIGITS = 400


class ParseError(ValueError):
    """The text is not an answer in this grammar, or is too large to parse."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """"number", "name" (one symbol), "word" (a function, constant or command), "text" (prose, units), "separator", "op" or "end"."""
    text: str


FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "lg", "exp",
    "sqrt", "arcsec", "arccsc", "arccot", "asin", "acos", "atan", "min", "max", "gcd", "lcm",
))  # fmt: skip
GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa", "lambda", "mu",
    "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi",
    "Sigma", "Phi", "Psi", "Omega", "ell",
))  # fmt: skip
_CONSTANTS = {
    "pi": "pi",
    **dict.fromkeys(("infty", "infinity", "inf", "oo"), "infty"),
    **dict.fromkeys(("emptyset", "varnothing"), "emptyset"),
}
_STRUCTURE = frozenset((
    "frac", "binom", "choose", "sum", "prod", "overline", "begin", "end", "lfloor", "rfloor", "lceil", "rceil", "mod", "pmod",
))  # fmt: skip
_SYNONYMS = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "binom"),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("le", "leq", "leqslant"), "<="),
    **dict.fromkeys(("ge", "geq", "geqslant"), ">="),
    **dict.fromkeys(("ne", "neq"), "!="),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **{"lt": "<", "gt": ">", "approx": "~=", "in": "in", "pm": "+-", "mp": "-+", "div": "/", "colon": ":", "langle": "(", "rangle": ")"},
    **{"cup": "cup", "cap": "cap", "setminus": "setminus", "lbrace": r"\{", "rbrace": r"\}", "bmod": "mod"},
}
_OPERATORS = frozenset(_SYNONYMS.values()) - {"frac", "binom", "mod"}
UNITS = {
    **dict.fromkeys(("meter", "meters", "metre", "metres"), "m"),
    **dict.fromkeys(("cm", "centimeter", "centimeters"), "cm"),
    **dict.fromkeys(("mm", "millimeter", "millimeters"), "mm"),
    **dict.fromkeys(("km", "kilometer", "kilometers"), "km"),
    **dict.fromkeys(("kg", "kilogram", "kilograms"), "kg"),
    **dict.fromkeys(("ft", "foot", "feet"), "ft"),
    **dict.fromkeys(("inch", "inches"), "in"),
    **dict.fromkeys(("minute", "minutes"), "min"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("sec", "second", "seconds"), "s"),
    **{alias: alias for alias in ("day", "week", "month", "year", "mile", "yard", "gram", "liter", "dollar", "cent", "mph", "GB", "MB")},
    **{alias + "s": alias for alias in ("day", "week", "month", "year", "mile", "yard", "gram", "liter", "dollar", "cent")},
    **{"degree": "degree", "degrees": "degree", "sq": "sq", "cu": "cu", "rad": "rad", "radians": "rad", "units": "unit", "unit": "unit"},
}
"""Unit words and their canonical form. Answers with two different known units are different."""
_NUMBER_WORDS = frozenset((
    "hundred", "thousand", "million", "billion", "trillion", "dozen", "half", "quarter", "times", "squared", "cubed", "factorial",
    "over", "plus", "minus", "not",
))  # fmt: skip

_INVISIBLE = (
    r"\s+|~|\\[ ,;:!>]|\\(?:q?quad|displaystyle|textstyle|limits|nolimits|left\.?|right\.?|[bB]igg?[lr]?|phantom\{\s*\})(?![A-Za-z])"
)
_TOKEN = re.compile(
    rf"(?P<skip>{_INVISIBLE})"
    r"|\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|mathit|mathsf|operatorname|boldsymbol|bold)\s*\{(?P<text>[^{}]*)\}"
    r"|(?P<repeating>\d*\.\d*)\\overline\s*\{(?P<period>\d+)\}"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<op>\\\\|\\[{}|%#&]|<=|>=|!=|~=|[-+*/^_=<>(){}\[\]|:;,!%&'])"
)
_UNICODE = str.maketrans(
    {
        **dict(zip("０１２３４５６７８９", "0123456789", strict=True)),
        **{"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "²": "^2", "³": "^3", "√": r"\sqrt ", "±": r"\pm "},
        **{"≤": "<=", "≥": ">=", "≠": "!=", "≈": "~=", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
        **{"π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "°": "", "€": "", "£": "", "’": "'"},
        **{"\u00a0": " ", "\u200b": "", "\u200d": "", "\ufeff": ""},
    }
)
_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree\b|\\circ\b")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z])")
_MATH_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\\?\$")
_NEGATIVE_SPACE = re.compile(r"\\!\s*")
_THIN_SPACE = re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))")
_TRAILING = re.compile(r"(?:\\[ ,;:!]|[\s.,;:~])+\Z")
_BRACED_COMMA = re.compile(r"\s*\\?\{\s*,\s*\\?\}\s*")


def clean(text: str) -> str:
    """Return `text` without parts without meaning: math delimiters, currency and degree signs, unusual Unicode, trailing punctuation."""
    text = text.translate(_UNICODE)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _THIN_SPACE.sub("", text)
    text = _NEGATIVE_SPACE.sub("", _DEGREES.sub("", _MATH_DELIMITERS.sub("", text)))
    return _TRAILING.sub("", _BRACED_COMMA.sub(",", text)).strip()


def tokenize(text: str, *, thousands: bool = True) -> list[Token]:
    """Return the tokens of cleaned `text` and a final "end" token. If `thousands`, 1,000 outside brackets is one number.

    Raises ParseError for an unknown command or character, and when a size limit is exceeded.
    """
    tokens: list[Token] = []
    position = depth = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"unknown character {text[position]!r}")
        position = match.end()
        kind, matched = match.lastgroup, match[0]
        if kind == "skip":
            continue
        if kind == "number" and "," in matched and (depth > 0 or not thousands):
            matched = matched.split(",", 1)[0]
            position = match.start() + len(matched)
        if kind == "period":
            kind, matched = "number", f"{match['repeating']}r{match['period']}"
        if len(tokens) > MAX_TOKENS or (kind == "number" and len(matched) > MAX_DIGITS):
            raise ParseError("too long")
        previous = tokens[-1] if tokens else None
        tokens.extend(_classify(kind or "", match[kind] if kind in ("text", "command") else matched, previous))
        depth += (matched in ("(", "[", r"\{")) - (matched in (")", "]", r"\}"))
    return [*tokens, Token("end", "")]


def _classify(kind: str, matched: str, previous: Token | None) -> list[Token]:
    if kind == "number":
        return [Token("number", matched.replace(",", ""))]
    if kind == "op":
        name = {r"\%": "%", r"\|": "|", r"\&": "&"}.get(matched, matched)
        return [Token("separator", name) if name in (",", ";") else Token("op", name)]
    if kind == "text":
        return _prose(matched.strip())
    if kind == "command":
        return [_command(matched)]
    return _word(matched, previous)


def _prose(words: str) -> list[Token]:
    words = words.strip("., ")
    if words in ("and", "or"):
        return [Token("separator", words)]
    if not words:
        return []
    if len(words) == 1 and words.isalpha():
        return [Token("name", words)]
    if words.replace(".", "", 1).isdecimal() and words.isascii():
        return [Token("number", words)]
    if words in FUNCTIONS:
        return [Token("word", words)]
    if words in ("percent", "pct", "%"):
        return [Token("op", "%")]
    return [Token("text", words)]


def _command(name: str) -> Token:
    name = _SYNONYMS.get(name, name)
    if name in _OPERATORS:
        return Token("op", name)
    if name in _CONSTANTS:
        return Token("word", _CONSTANTS[name])
    if name in FUNCTIONS or name in _STRUCTURE:
        return Token("word", name)
    if name in GREEK or name in ("ldots", "dots", "cdots"):
        return Token("name", "ldots" if name.endswith("dots") else name)
    raise ParseError(f"unknown command \\{name}")


def _word(letters: str, previous: Token | None) -> list[Token]:
    """Tokens of a run of letters: a function, a constant, a separator, a unit, prose, or otherwise a product of symbols."""
    if letters in FUNCTIONS and not (letters == "sec" and previous is not None and previous.kind == "number"):
        return [Token("word", letters)]
    if letters in _CONSTANTS:
        return [Token("word", _CONSTANTS[letters])]
    if letters in ("and", "or"):
        return [Token("separator", letters)]
    if letters in ("percent", "pct"):
        return [Token("op", "%")]
    if letters.lower() in _NUMBER_WORDS:
        raise ParseError(f"number word: {letters}")
    if len(letters) > 3 or letters in UNITS:
        return [Token("text", letters)]
    return [Token("name", letter) for letter in letters]
