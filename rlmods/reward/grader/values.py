"""Single values: numbers, percentages, units, expressions, words, and how a decimal may stand for a number that has none."""

from __future__ import annotations

import re
from fractions import Fraction

from rlmods.reward.grader.evaluate import POINTS, evaluate, free_names
from rlmods.reward.grader.numbers import Undefined, Value, as_mp, close, is_real
from rlmods.reward.grader.parse import parse
from rlmods.reward.grader.syntax import Node
from rlmods.reward.grader.tokens import UNITS, clean

_PLAIN = re.compile(r"([-+]?)(?:\\[dt]?frac\{(\d{1,100})\}\{(\d{1,100})\}|(\d{1,100})/(\d{1,100})|(\d{1,100}(?:\.\d{0,100})?|\.\d{1,100}))")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|mathit|bold|boldsymbol)\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"\(?([A-Z])(?:\)|[.:]\s|[.:]?$)(?!.*(?<![A-Za-z(])\(?[A-Z]\))")
"""B) 17, but not B) or C)."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_SYMBOLS = re.compile(r"[a-z]{1,3}|(?:[a-z]{1,2}|[A-Z])(?: ?- ?(?:[a-z]{1,2}|[A-Z]))+|[A-Za-z](?: [A-Za-z])+")
"""What matches _WORDS but is rather a product or difference of symbols."""
_ANY_CASE = re.compile(r"[A-Z][a-z]+|.*[A-Za-z]{4}.*")
"""Words that are the same in capitals: Yes, even. Not so X and x, or AB and ab."""


_SAYINGS = frozenset(("yes", "no", "odd", "even", "true", "false", "none"))
"""Words that are as short as symbols, and none."""


def same_plain(answer: str, gold: str) -> bool | None:
    """The verdict where it needs no parser: the same text, two plain numbers, or a gold that is prose. None: undecided."""
    answer, gold = clean(answer), clean(gold)
    if not answer or not gold:
        return False
    if answer == gold:
        return True
    right, left = plain_number(gold), plain_number(answer)
    if right is not None and left is not None:
        return left == right or _rounded(right, answer, left) or _rounded(left, gold, right)
    return _same_text(answer, gold)


def plain_number(text: str) -> Fraction | None:
    """An integer, decimal or simple fraction."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    sign, top, bottom, over, under, literal = match.groups()
    value = Fraction(literal) if literal else Fraction(int(top or over), int(bottom or under) or 1)
    if not literal and not int(bottom or under):
        return None
    return -value if sign == "-" else value


def _same_text(answer: str, gold: str) -> bool | None:
    said, wanted = _prose(answer), _prose(gold)
    if said == wanted or (said.casefold() == wanted.casefold() and wanted.casefold() in _SAYINGS):
        return True
    if re.fullmatch("[A-Z]", wanted) and (choice := _CHOICE.match(said)):
        return choice[1] == wanted
    is_words = _WORDS.fullmatch(wanted) is not None
    if (is_words or _WRAPPER.fullmatch(gold)) and said.casefold() == wanted.casefold() and any(map(_ANY_CASE.fullmatch, (said, wanted))):
        return True
    return False if is_words and not _SYMBOLS.fullmatch(wanted) else None


def _prose(text: str) -> str:
    """`text` without the marks of prose. Braces go only where no command is left whose arguments they could be."""
    text = _WRAPPER.sub(r"\1", text)
    if not re.search(r"[\\^_]", text):
        text = text.replace("{", " ").replace("}", " ")
    text = " ".join(text.split()).rstrip(" .")
    return text[1:-1] if re.fullmatch(r"\([A-Za-z]\)", text) else text


def same_value(gold: Node, answer: Node) -> bool:
    if gold.op == "base" or answer.op == "base":
        return gold.op == "base" and answer.op == "number" and gold.text == answer.text
    if gold.op == "text" or answer.op == "text":
        return gold.op == answer.op and gold.text.casefold() == answer.text.casefold()
    units = {node.text for node in (gold, answer) if node.op == "unit" and _known_unit(node.text)}
    if len(units) > 1:
        return False
    gold, answer = (node.args[0] if node.op == "unit" else node for node in (gold, answer))
    if units and "%" in (gold.op, answer.op):
        return False
    if gold.op == "%" and answer.op != "%":
        return same_value(gold.args[0], answer) or _equal(gold, answer)
    if answer.op == "%" and gold.op != "%":
        return _equal(gold, answer) or (_equal(gold, answer.args[0]) and not _equal(Node("floor", (Node("abs", (gold,)),)), parse("0")))
    return _equal(gold, answer) or _rounds_to(gold, answer) or _rounds_to(answer, gold)


def _known_unit(unit: str) -> bool:
    return all(word in UNITS.values() or word.startswith("^") or word == "/" for word in unit.split())


def _equal(gold: Node, answer: Node) -> bool:
    """Equal at every random point at which both are real or both complex."""
    if free_names(gold) - {"e", "i"} != free_names(answer) - {"e", "i"}:
        return _equal_at(gold, answer, range(2)) and _equal_at(gold, answer, range(POINTS))
    return _equal_at(gold, answer, range(POINTS if free_names(gold) - {"e", "i"} else 1))


def _equal_at(gold: Node, answer: Node, points: range) -> bool:
    compared = 0
    for point in points:
        try:
            ours, theirs = evaluate(gold, point), evaluate(answer, point)
        except Undefined:
            if point < POINTS - 2:
                raise
            continue
        complex_branch = point >= POINTS - 2 and is_real(ours) != is_real(theirs)
        if not complex_branch and not close(ours, theirs):
            return False
        compared += 1
    return compared > 0


def _rounds_to(exact: Node, decimal: Node) -> bool:
    negative = decimal.op == "neg"
    literal = decimal.args[0] if negative else decimal
    if literal.op != "number" or "." not in literal.text or literal.value is None or "e" in literal.text.lower() or "r" in literal.text:
        return False
    if free_names(exact) - {"e"}:
        return False
    value = evaluate(exact)
    rounded = -literal.value if negative else literal.value
    return is_real(value) and _rounded(value if isinstance(value, Fraction) else value.real, literal.text, rounded)


def _rounded(exact: Value, literal: str, value: Fraction) -> bool:
    """Whether the decimal `literal` is `exact`, which has no finite decimal of its own, rounded to its last place.

    It needs two places, and two digits that count: 0.00 is not 1/300.
    """
    places = len(literal.partition(".")[2]) if "/" not in literal and "frac" not in literal else 0
    if places < 2 or len(literal.lstrip("+-0.").replace(".", "")) < 2 or (isinstance(exact, Fraction) and _is_finite_decimal(exact)):
        return False
    return bool(abs(as_mp(exact) - as_mp(value)) <= as_mp(Fraction(1, 2 * 10**places)))


def _is_finite_decimal(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
