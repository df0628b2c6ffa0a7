"""Form of an answer to a reasoning-gym task, where the package's own scorer pays more than right
answers.

Answers with NaN, infinity or numbers that overflow are refused for all tasks, as such a value
compares with anything. The other checks are for the tasks of `FORMS`, whose scorers search for the
right answer in a text, round, or evaluate more than arithmetic."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlmods.grading.sandbox.expressions import rational

_NOT_FINITE = re.compile(
    r"(?<![^\W\d_])(?:nan|inf|infinity|z?oo)(?![^\W\d_])|\d[eE]\+?\d{3}", re.IGNORECASE
)
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STATEMENT = re.compile(r"\b[^\W\d_]+ is (?:an? )?[^\W\d_]+\b")
_BETWEEN_STATEMENTS = re.compile(r"(?:and|[\s.,()])*")
_ARITHMETIC = re.compile(r"[\d\s+\-*/().]{1,1000}")


def has_form(task: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Return False if `answer` has not the form of an answer to the entry of the task, so that it
    is wrong whatever the scorer says."""
    gold = str(entry.get("answer", ""))
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(gold):
        return False
    return task not in FORMS or FORMS[task](answer, gold, entry)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text.replace(",", ""))]


def _no_other_words(answer: str, gold: str, allowed: tuple[str, ...] = ()) -> bool:
    return {word.lower() for word in _WORD.findall(answer)} <= {
        word.lower() for word in _WORD.findall(gold)
    } | set(allowed)


def _same_numbers(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    return _no_other_words(answer, gold, ("frac", "dfrac", "tfrac")) and _numbers(
        answer
    ) == _numbers(gold)


def _as_many_numbers(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    return _no_other_words(answer, gold) and len(_NUMBER.findall(answer)) == len(
        _NUMBER.findall(gold)
    )


def _same_list(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    """Return True for a JSON list of the gold's numbers, also in single quotes as in Python."""
    try:
        own, right = (
            [float(str(item)) for item in json.loads(text.replace("'", '"'))]
            for text in (answer, gold)
        )
    except (ValueError, TypeError, RecursionError):
        return False
    return own == right


def _same_digits(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    """Return True for a number that equals the gold, rounded to the digits that it has."""
    try:
        numbers = [Decimal(text.strip().replace(",", "")) for text in (answer, gold)]
        last_digit = max(int(number.as_tuple().exponent) for number in numbers)
        return abs(numbers[0] - numbers[1]) <= Decimal(5).scaleb(last_digit - 1)
    except (ArithmeticError, ValueError):
        return False


def _statements(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    """Return True for statements such as "Ann is a hero" and nothing else."""
    return (
        _no_other_words(answer, gold, ("and", "is", "a", "an"))
        and _BETWEEN_STATEMENTS.fullmatch(_STATEMENT.sub("", answer)) is not None
    )


def _words(*allowed: str) -> Callable[[str, str, Mapping[str, Any]], bool]:
    return lambda answer, gold, entry: _no_other_words(answer, gold, allowed)


def _probability(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    try:
        return math.isclose(Fraction(answer.strip()), Fraction(gold), rel_tol=1e-3)
    except (ValueError, ZeroDivisionError, OverflowError):
        return False


def _characters(allowed: str) -> Callable[[str, str, Mapping[str, Any]], bool]:
    return lambda answer, gold, entry: (
        re.fullmatch(rf"(?:[{allowed}]|\W)*", answer, re.IGNORECASE) is not None
    )


def _same_text(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    return answer.strip().strip(".").lower() == gold.lower()


def _arithmetic(answer: str, gold: str, entry: Mapping[str, Any]) -> bool:
    """Return True for sums, products and quotients of exactly the prompt's numbers, with exactly
    the target (24 if there is none)."""
    metadata = entry["metadata"]
    if not _ARITHMETIC.fullmatch(answer) or sorted(
        map(int, re.findall(r"\d+", answer)[:100])
    ) != sorted(metadata["numbers"]):
        return False
    try:
        return bool(rational(answer) == metadata.get("target", 24))
    except (ZeroDivisionError, RecursionError):
        return False


FORMS: dict[str, Callable[[str, str, Mapping[str, Any]], bool]] = {
    "countdown": _arithmetic,
    "puzzle24": _arithmetic,
    "gsm_symbolic": _same_numbers,
    "fraction_simplification": _same_numbers,
    "advanced_geometry": _as_many_numbers,
    "number_sorting": _same_list,
    "number_format": _same_digits,
    "decimal_arithmetic": _same_digits,
    "complex_arithmetic": _words("i", "j"),
    "knights_knaves": _statements,
    "survo": _words(),
    "kakurasu": _words(),
    "coin_flip": _probability,
    "sokoban": _characters("LRUD"),
    "quantum_lock": _characters("ABC"),
    "game_of_life_halting": _same_text,
}
"""Checks of (answer, gold, entry) by task."""
