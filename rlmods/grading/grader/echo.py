"""Answers that repeat an expression of the question instead of evaluating it."""

from __future__ import annotations

import re

from rlmods.grading.grader.compare import same_form
from rlmods.grading.grader.style import clean, plain_characters
from rlmods.grading.grader.values import plain_number

_OPERATION = re.compile(r"[+*/^!]|(?<=[\w)}])-|\\[A-Za-z]", re.ASCII)
_FORMULA = re.compile(r"[0-9\\^+*/=]")
_INSIGNIFICANT = re.compile(
    r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\q?quad(?![A-Za-z])|\\[()\[\],;:! ]|[\s${}]"
)
_TIMES = re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")


def repeats(answer: str, gold: str, question: str) -> bool:
    """Return True if the answer is an expression that occurs in the question and is not the gold in
    other notation.

    Numbers, words, and answers to golds that are words are not expressions.
    """
    plain = clean(answer)
    compact = _compact(plain)
    is_expression = _OPERATION.search(compact) is not None and plain_number(plain) is None
    if not _FORMULA.search(gold) or not is_expression:
        return False
    return compact in _compact(question) and not same_form(answer, gold)


def _compact(text: str) -> str:
    """Return `text` with one way to write products and fractions, and without spaces and braces."""
    text = _FRACTION.sub(r"\\frac", plain_characters(text))
    return _INSIGNIFICANT.sub("", _TIMES.sub("*", text))
