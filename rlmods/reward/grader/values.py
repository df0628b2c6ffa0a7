"""Comparison of single values: numbers, percentages, units, expressions, words, and rounded decimals."""

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
"""A choice such as B) 17, but not B) or C)."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_SYMBOLS = re.compile(r"[a-z]{1,3}|(?:[a-z]{1,2}|[A-Z])(?: ?- ?(?:[a-z]{1,2}|[A-Z]))+|[A-Za-z](?: [A-Za-z])+")
"""Products or differences of symbols, which _WORDS matches too."""
_ANY_CASE = re.compile(r"[A-Z][a-z]+|.*[A-Za-z]{4}.*")
"""Words compared without regard to case: Yes, even; but not X and x, or AB and ab."""
_SHORT_WORDS = frozenset(("yes", "no", "odd", "even", "true", "false", "none"))
"""Words as short as symbols, compared without regard to case."""


def same_plain(answer: str, gold: str) -> bool | None:
    """Return the verdict if it needs no parser: the same text, two plain numbers, or a gold that is prose. Otherwise None."""
    answer, gold = clean(answer), clean(gold)
    if not answer or not gold:
        return False
    if answer == gold:
        return True
    gold_number, answer_number = plain_number(gold), plain_number(answer)
    if gold_number is not None and answer_number is not None:
        if answer_number == gold_number:
            return True
        return _is_rounding(gold_number, answer, answer_number) or _is_rounding(answer_number, gold, gold_number)
    return _same_text(answer, gold)


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer, decimal or simple fraction; None for any other text."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    sign, frac_top, frac_bottom, slash_top, slash_bottom, decimal = match.groups()
    top, bottom = frac_top or slash_top, frac_bottom or slash_bottom
    if not decimal and not int(bottom):
        return None
    value = Fraction(decimal) if decimal else Fraction(int(top), int(bottom))
    return -value if sign == "-" else value


def _same_text(answer: str, gold: str) -> bool | None:
    answer_words, gold_words = _strip_markup(answer), _strip_markup(gold)
    if answer_words == gold_words or (answer_words.casefold() == gold_words.casefold() and gold_words.casefold() in _SHORT_WORDS):
        return True
    if re.fullmatch("[A-Z]", gold_words) and (choice := _CHOICE.match(answer_words)):
        return choice[1] == gold_words
    is_words = _WORDS.fullmatch(gold_words) is not None
    if (
        (is_words or _WRAPPER.fullmatch(gold))
        and answer_words.casefold() == gold_words.casefold()
        and any(map(_ANY_CASE.fullmatch, (answer_words, gold_words)))
    ):
        return True
    return False if is_words and not _SYMBOLS.fullmatch(gold_words) else None


def _strip_markup(text: str) -> str:
    """Return `text` without markup of prose. Braces are removed only if no command is left whose arguments they could be."""
    text = _WRAPPER.sub(r"\1", text)
    if not re.search(r"[\\^_]", text):
        text = text.replace("{", " ").replace("}", " ")
    text = " ".join(text.split()).rstrip(" .")
    return text[1:-1] if re.fullmatch(r"\([A-Za-z]\)", text) else text


def same_value(gold: Node, answer: Node) -> bool:
    """Return True if two single values are equal, with their units, percent signs and rounding."""
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
    return _equal(gold, answer) or _is_rounded_decimal(gold, answer) or _is_rounded_decimal(answer, gold)


def _known_unit(unit: str) -> bool:
    return all(word in UNITS.values() or word.startswith("^") or word == "/" for word in unit.split())


def _equal(gold: Node, answer: Node) -> bool:
    """Return True if equal at every random point at which both are real or both complex."""
    if free_names(gold) - {"e", "i"} != free_names(answer) - {"e", "i"}:
        return _equal_at(gold, answer, range(2)) and _equal_at(gold, answer, range(POINTS))
    return _equal_at(gold, answer, range(POINTS if free_names(gold) - {"e", "i"} else 1))


def _equal_at(gold: Node, answer: Node, points: range) -> bool:
    compared = 0
    for point in points:
        try:
            gold_value, answer_value = evaluate(gold, point), evaluate(answer, point)
        except Undefined:
            if point < POINTS - 2:
                raise
            continue
        complex_branch = point >= POINTS - 2 and is_real(gold_value) != is_real(answer_value)
        if not complex_branch and not close(gold_value, answer_value):
            return False
        compared += 1
    return compared > 0


def _is_rounded_decimal(exact: Node, decimal: Node) -> bool:
    negative = decimal.op == "neg"
    literal = decimal.args[0] if negative else decimal
    if literal.op != "number" or "." not in literal.text or literal.value is None or "e" in literal.text.lower() or "r" in literal.text:
        return False
    if free_names(exact) - {"e"}:
        return False
    value = evaluate(exact)
    rounded = -literal.value if negative else literal.value
    return is_real(value) and _is_rounding(value if isinstance(value, Fraction) else value.real, literal.text, rounded)


def _is_rounding(exact: Value, literal: str, value: Fraction) -> bool:
    """Return True if the decimal `literal` is `exact`, which has no finite decimal, rounded to its last place.

    Requires two decimal places and two significant digits: 0.00 is not 1/300.
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
