"""Tokens and syntax tree of an answer: LaTeX, plain maths and the words around them. One pass, no
evaluation, bounded sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from rlmods.grading.grader.style import TEXT
from rlmods.grading.grader.units import WORDS, read_unit

MAX_TOKENS = 400


class ParseError(ValueError):
    """The text is not an answer in this grammar, or is too large to parse."""


class TooDeepError(ParseError):
    """The text is nested more deeply than Python's limit of recursion lets a parser go."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """"number", "name" (one symbol), "word" (a function, constant or command), "text" (prose,
    units), "separator", "op", "begin" and "close" (an environment) or "end"."""
    text: str
    apart: bool = False
    """True after a form feed (as of a wide space), an empty line or an empty text: what stands
    before it is not a factor of this."""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _tokens(kind: str, names: str) -> dict[str, Token]:
    """Return tokens by name from names, each with its text after a colon if it differs."""
    table = {}
    for entry in names.split():
        name, _, text = entry.partition(":")
        table[name] = Token(kind, text or name)
    return table


TRIGONOMETRIC = word_set("sin cos tan cot sec csc")
FUNCTIONS = TRIGONOMETRIC | word_set(
    "arcsin arccos arctan arcsec arccsc arccot asin acos atan sinh cosh tanh ln log lg exp sqrt "
    "min max gcd lcm det"
)
_SHARED = {
    **_tokens("word", " ".join(FUNCTIONS)),
    **_tokens("word", "pi infty infinity:infty inf:infty oo:infty reals"),
    **_tokens("word", "emptyset varnothing:emptyset"),
    **_tokens("separator", "and or"),
    **_tokens("op", "percent:% pct:% %"),
}
"""Names that mean the same with and without a backslash."""
_COMMANDS = {
    **_SHARED,
    **_tokens("word", "frac dfrac:frac tfrac:frac cfrac:frac binom dbinom:binom tbinom:binom"),
    **_tokens(
        "word", "choose over sum prod int overline bar hat widehat:hat tilde widetilde:tilde"
    ),
    **_tokens("word", "mod bmod:mod pmod"),
    **_tokens("separator", "land:and wedge:and lor:or vee:or"),
    **_tokens("op", r"cdot:* times:* ast:* div:/ pm:+- mp:-+ lvert:| rvert:| vert:| mid:|"),
    **_tokens("op", "lt:< le:<= leq:<= leqslant:<= gt:> ge:>= geq:>= geqslant:>= ne:!= neq:!="),
    **_tokens("op", r"approx:~= in langle:( rangle:) lbrace:\{ rbrace:\} cup cap"),
    **_tokens("op", "setminus smallsetminus:setminus backslash:setminus"),
    "colon": Token("op", ":"),
    **_tokens("name", "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota"),
    **_tokens("name", "kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega"),
    **_tokens("name", "Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell angle measuredangle"),
    **_tokens("name", "triangle odot integers naturals rationals complexes"),
    **_tokens("name", "ldots dots:ldots cdots:ldots"),
}
NEGATIONS = word_set("not no isnt never wrong incorrect false except without unlike")
"""Words that reverse what they are written beside, so that `\\text{Not } = 5` is not a label of
5."""

_TOKEN = re.compile(
    r"(?P<skip>\s+|~|\\[ ,;:!>])"
    rf"|{TEXT}\{{(?P<text>[^{{}}\\$]*)\}}"
    rf"|(?P<wrapper>{TEXT}(?=\{{))"
    r"|(?P<repeating>\d*\.\d*)\\(?:overline|bar|dot)\s*\{(?P<period>\d+)\}"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)"
    r"|\\begin\s*\{(?P<begin>[a-z]+\*?)\}(?:(?<=array\})\s*\{[^{}]*\})?"
    r"|\\end\s*\{(?P<close>[a-z]+\*?)\}"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<op>\\\\|\\[{}|%#&]|<=|>=|!=|~=|[-+*/^_=<>(){}\[\]|:;,!%&'°])",
    re.ASCII,
)


def tokenize(text: str, *, thousands: bool = True) -> list[Token]:
    """Return the tokens of cleaned `text` and a final "end" token. If `thousands`, 1,000 outside
    brackets is one number.

    Raises ParseError for an unknown command or character, and when a size limit is exceeded.
    """
    tokens: list[Token] = []
    position = 0
    depth = 0
    apart = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"unknown character {text[position]!r}")
        position = match.end()
        matched = match[0]
        if match.lastgroup in ("skip", "wrapper"):
            apart = apart or "\f" in matched or matched.count("\n") > 1
            continue
        if match["number"] and "," in matched and (depth > 0 or not thousands):
            matched = matched.split(",", 1)[0]
            position = match.start() + len(matched)
        found = _classify(match, matched, tokens[-1] if tokens else Token("end", ""))
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too long")
        if apart and found:
            found[0] = replace(found[0], apart=True)
        apart = not found
        tokens.extend(found)
        depth += (matched in ("(", "[", r"\{")) - (matched in (")", "]", r"\}"))
    return [*tokens, Token("end", "")]


def _classify(match: re.Match[str], matched: str, previous: Token) -> list[Token]:
    kind = match.lastgroup
    if kind == "number":
        return [Token("number", matched.replace(",", ""))]
    if kind == "period":
        return [Token("number", f"{match['repeating']}r{match['period']}")]
    if kind in ("begin", "close"):
        return [Token(kind, match[kind])]
    if kind == "op":
        name = matched[1:] if matched in (r"\%", r"\|", r"\&") else matched
        return [Token("separator" if name in (",", ";") else "op", name)]
    if kind == "text":
        return _prose(match["text"], previous)
    if kind == "word":
        return _word(matched, previous)
    if match["command"] not in _COMMANDS:
        raise ParseError(f"unknown command {matched}")
    return [_COMMANDS[match["command"]]]


def _prose(words: str, previous: Token) -> list[Token]:
    words = words.replace("~", " ").strip().strip("., ")
    is_unit = read_unit(words) is not None
    if not words:
        return []
    if is_unit and (previous.kind == "number" or previous.text in ("}", ")", "/", "*")):
        return [Token("text", words)]
    if len(words) == 1 and words.isalpha():
        return [Token("name", words)]
    return [_SHARED.get(words) or Token("text", words)]


def _word(letters: str, previous: Token) -> list[Token]:
    """Return the tokens of a run of letters: a function, a constant, a separator, a unit, prose, or
    otherwise a product of symbols."""
    after_number = previous.kind == "number"
    known = _SHARED.get(letters)
    if known is not None and not (letters in ("sec", "min") and after_number):
        return [known]
    if len(letters) > 3 or (letters in WORDS and (after_number or len(letters) > 1)):
        return [Token("text", letters)]
    return [Token("name", letter) for letter in letters]


MAX_EXPONENT_DIGITS = 3
"""With the characters of an answer, this stays below 4300 digits, the most that Python converts to
text."""


@dataclass(frozen=True, slots=True)
class Node:
    op: str
    """number, name, constant, text, neg, +, *, /, ^, +-, !, %, mod, call, apply, abs, sum, prod,
    int, base, unit, phrase, group, list, rel, ratio, matrix, row, cup, cap, setminus."""
    args: tuple[Node, ...] = ()
    text: str = ""
    """Name: a symbol, a function, the bracket pair of a group, the unit, the operators of a
    relation (space-separated)."""
    value: Fraction | None = None
    """Value of a number."""

    def walk(self) -> Iterator[Node]:
        """Yield all nodes of the tree."""
        yield self
        for arg in self.args:
            yield from arg.walk()

    def contains(self, op: str, text: str | None = None) -> bool:
        """Return True if a node of the tree has this operation, and this text if one is given."""
        return any(node.op == op and text in (None, node.text) for node in self.walk())

    def members(self, op: str) -> list[Node]:
        """Return the terms of a sum, factors of a product and so on, also of those inside it."""
        if self.op != op:
            return [self]
        return [member for arg in self.args for member in arg.members(op)]


INFINITY = Node("constant", text="infty")
EMPTY_SET = Node("group", text=r"\{\}")
REALS = Node("group", (Node("neg", (INFINITY,)), INFINITY), "()")


def number(literal: str) -> Node:
    """Return the node of a decimal literal, with its exact value. `0.1r6` is 0.1666..."""
    plain, _, period = literal.partition("r")
    mantissa, _, exponent = plain.lower().partition("e")
    if len(exponent.lstrip("+-")) > MAX_EXPONENT_DIGITS:
        raise ParseError("exponent too large")
    value = Fraction(plain if mantissa.strip(".") else 0)
    if period:
        places = len(plain.partition(".")[2])
        value += Fraction(int(period), (10 ** len(period) - 1) * 10**places)
    return Node("number", text=literal, value=value)
