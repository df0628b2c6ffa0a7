"""Tokenizer of answers: LaTeX, plain maths and the words around them. One pass, no evaluation,
bounded sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rlmods.grading.grader.style import clean
from rlmods.grading.grader.units import WORDS, read_unit

__all__ = ["FUNCTIONS", "ParseError", "Token", "clean", "tokenize"]

MAX_TOKENS = 400
MAX_DIGITS = 400


class ParseError(ValueError):
    """The text is not an answer in this grammar, or is too large to parse."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """"number", "name" (one symbol), "word" (a function, constant or command), "text" (prose,
    units), "separator", "op" or "end"."""
    text: str
    apart: bool = False
    """True after a form feed (as of a wide space), an empty line or an empty text: what stands
    before it is no factor of this."""


TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
FUNCTIONS = TRIGONOMETRIC | frozenset(
    (
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "ln",
        "log",
        "lg",
        "exp",
        "sqrt",
        "arcsec",
        "arccsc",
        "arccot",
        "asin",
        "acos",
        "atan",
        "min",
        "max",
        "gcd",
        "lcm",
    )
)
GREEK = frozenset(
    (
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "angle",
        "measuredangle",
        "triangle",
        "odot",
        "integers",
        "naturals",
        "rationals",
        "complexes",
    )
)
_CONSTANTS = {
    "pi": "pi",
    **dict.fromkeys(("infty", "infinity", "inf", "oo"), "infty"),
    **dict.fromkeys(("emptyset", "varnothing"), "emptyset"),
    "reals": "reals",
}
_STRUCTURE = frozenset(
    (
        "frac",
        "binom",
        "choose",
        "over",
        "sum",
        "prod",
        "int",
        "overline",
        "bar",
        "hat",
        "tilde",
        "begin",
        "end",
        "lfloor",
        "rfloor",
        "lceil",
        "rceil",
        "mod",
        "pmod",
    )
)
_SYNONYMS = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "binom"),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("le", "leq", "leqslant"), "<="),
    **dict.fromkeys(("ge", "geq", "geqslant"), ">="),
    **dict.fromkeys(("ne", "neq"), "!="),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("land", "wedge"), "and"),
    **dict.fromkeys(("lor", "vee"), "or"),
    **{
        "lt": "<",
        "gt": ">",
        "approx": "~=",
        "in": "in",
        "pm": "+-",
        "mp": "-+",
        "div": "/",
        "colon": ":",
        "langle": "(",
        "rangle": ")",
    },
    **{
        "cup": "cup",
        "cap": "cap",
        "setminus": "setminus",
        "smallsetminus": "setminus",
        "backslash": "setminus",
    },
    **{
        "lbrace": r"\{",
        "rbrace": r"\}",
        "bmod": "mod",
        "widehat": "hat",
        "widetilde": "tilde",
        "iint": "iint",
    },
}
_OPERATORS = frozenset(_SYNONYMS.values()) - {
    "frac",
    "binom",
    "mod",
    "hat",
    "tilde",
    "and",
    "or",
    "iint",
}
_NUMBER_WORDS = frozenset(
    (
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
        "dozen",
        "half",
        "quarter",
        "times",
        "squared",
        "cubed",
        "factorial",
        "over",
        "plus",
        "minus",
        "not",
    )
)
NEGATIONS = frozenset(
    ("not", "no", "isnt", "never", "wrong", "incorrect", "false", "except", "without", "unlike")
)
"""Words that reverse what they are written beside, so that `\text{Not } = 5` is no label of 5."""

_TEXT = r"\\(?:text|textbf|textit|textrm|textsf|texttt|textup|textmd|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname|bold)"
_TOKEN = re.compile(
    r"(?P<skip>\s+|~|\\[ ,;:!>])"
    rf"|{_TEXT}\*?\s*\{{(?P<text>[^{{}}\\$]*)\}}"
    rf"|(?P<wrapper>{_TEXT}\*?\s*(?=\{{))"
    r"|(?P<repeating>\d*\.\d*)\\overline\s*\{(?P<period>\d+)\}"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<op>\\\\|\\[{}|%#&]|<=|>=|!=|~=|[-+*/^_=<>(){}\[\]|:;,!%&'°])",
    re.ASCII,
)
_CONTENT = re.compile(r"[-+]?[\d.,]*\d", re.ASCII)


def tokenize(text: str, *, thousands: bool = True) -> list[Token]:
    """Return the tokens of cleaned `text` and a final "end" token. If `thousands`, 1,000 outside
    brackets is one number.

    Raises ParseError for an unknown command or character, and when a size limit is exceeded.
    """
    tokens: list[Token] = []
    position = depth = 0
    apart = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"unknown character {text[position]!r}")
        position = match.end()
        kind, matched = match.lastgroup, match[0]
        if kind in ("skip", "wrapper"):
            apart = apart or "\f" in matched or matched.count("\n") > 1
            continue
        if kind == "number" and "," in matched and (depth > 0 or not thousands):
            matched = matched.split(",", 1)[0]
            position = match.start() + len(matched)
        if kind == "period":
            kind, matched = "number", f"{match['repeating']}r{match['period']}"
        if len(tokens) > MAX_TOKENS or (kind == "number" and len(matched) > MAX_DIGITS):
            raise ParseError("too long")
        previous = tokens[-1] if tokens else None
        found = _classify(
            kind or "", match[kind] if kind in ("text", "command") else matched, previous
        )
        if apart and found:
            found[0] = replace(found[0], apart=True)
        apart = not found
        tokens.extend(found)
        depth += (matched in ("(", "[", r"\{")) - (matched in (")", "]", r"\}"))
    return [*tokens, Token("end", "")]


def _classify(kind: str, matched: str, previous: Token | None) -> list[Token]:
    if kind == "number":
        return [Token("number", matched.replace(",", ""))]
    if kind == "op":
        name = {r"\%": "%", r"\|": "|", r"\&": "&"}.get(matched, matched)
        return [Token("separator", name) if name in (",", ";") else Token("op", name)]
    if kind == "text":
        return _prose(matched.strip(), previous)
    if kind == "command":
        return [_command(matched)]
    return _word(matched, previous)


def _prose(words: str, previous: Token | None) -> list[Token]:
    words = words.replace("~", " ").strip("., ")
    after_quantity = previous is not None and (
        previous.kind == "number" or previous.text in ("}", ")", "/", "*")
    )
    if "^" in words and read_unit(words) is None:
        return tokenize(words)[:-1]
    if words in ("and", "or"):
        return [Token("separator", words)]
    if not words:
        return []
    if after_quantity and read_unit(words) is not None:
        return [Token("text", words)]
    if len(words) == 1 and words.isalpha():
        return [Token("name", words)]
    if (literal := _CONTENT.match(words)) is not None:
        rest = words[literal.end() :].strip()
        sign = [Token("op", literal[0][0])] if literal[0][0] in "+-" else []
        number = Token("number", literal[0].lstrip("+-").replace(",", ""))
        return [*sign, *tokenize(number.text)[:-1], *(_prose(rest, number) if rest else [])]
    if words in FUNCTIONS:
        return [Token("word", words)]
    if words in ("percent", "pct", "%"):
        return [Token("op", "%")]
    if words in _CONSTANTS:
        return [Token("word", _CONSTANTS[words])]
    return [Token("text", words)]


def _command(name: str) -> Token:
    name = _SYNONYMS.get(name, name)
    if name in ("and", "or"):
        return Token("separator", name)
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
    """Tokens of a run of letters: a function, a constant, a separator, a unit, prose, or otherwise
    a product of symbols."""
    after_number = previous is not None and previous.kind == "number"
    if letters in FUNCTIONS and not (letters in ("sec", "min") and after_number):
        return [Token("word", letters)]
    if letters in _CONSTANTS:
        return [Token("word", _CONSTANTS[letters])]
    if letters in ("and", "or"):
        return [Token("separator", letters)]
    if letters in ("percent", "pct"):
        return [Token("op", "%")]
    if letters.lower() in _NUMBER_WORDS and not (
        previous is not None and previous.kind == "text" and read_unit(previous.text)
    ):
        raise ParseError(f"number word: {letters}")
    if len(letters) > 3 or (letters in WORDS and (after_number or len(letters) > 1)):
        return [Token("text", letters)]
    return [Token("name", letter) for letter in letters]
