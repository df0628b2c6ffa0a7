"""Golds that are read as they are written, not as arithmetic: dates, scores, ranges, versions,
phone numbers, and ratios in words."""

import re

from rlmods.grading.grader.style import flat

_NUMBER = r"\d+(?:\.\d+)?"
_LITERAL = re.compile(
    rf"\d+(?: ?- ?\d+){{1,4}}|\d+ ?/ ?\d+ ?/ ?\d+|\d+(?:\.\d+){{2,}}|v\d+(?:\.\d+)+"
    rf"|(?:\+\d+ ?)?\(\d+\) ?\d+(?:[ -]\d+)*|\+\d+(?:[ -]\d+)+"
    rf"|{_NUMBER} (?P<word>to|of|in|by|out of|from|per) {_NUMBER}",
    re.ASCII,
)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(?:\d{1,2}(?:st|nd|rd|th)?,?)"
_DATE = re.compile(
    rf"(?:(?:the )?{_DAY} (?:of )?{_MONTH}(?:,? \d{{1,4}})?|{_MONTH} {_DAY}(?:,? \d{{1,4}})?"
    rf"|{_MONTH},? \d{{4}})",
    re.IGNORECASE,
)
_WORDED = re.compile(rf"({_NUMBER}) to ({_NUMBER})")


def same_literal(answer: str, gold: str) -> bool | None:
    """Return the verdict for a cleaned gold that is read as it is written, else None."""
    gold = flat(gold)
    answer = flat(answer)
    if _DATE.fullmatch(gold):
        return _DATE.fullmatch(answer) is not None and _date(answer) == _date(gold)
    match = _LITERAL.fullmatch(gold)
    if match is None:
        return None
    if match["word"] in (None, "to"):  # 2 to 3, as a ratio or a range
        answer = re.sub(r"\s*(?::|\bto\b)\s*", "-" if match["word"] is None else " to ", answer)
    return _digits(answer) == _digits(gold)


def without_words(answer: str, gold: str) -> str:
    """Return an answer such as `2 to 3` as `2:3` beside a gold that is a ratio."""
    return _WORDED.sub(r"\1:\2", flat(answer)) if ":" in gold and " to " in answer else answer


def _date(text: str) -> list[str]:
    words = re.findall(r"\d+|[a-z]{3,}", text.casefold())
    return sorted(word.lstrip("0") if word.isdecimal() else word[:3] for word in words)


def _digits(text: str) -> str:
    """Return the text with spaces only between words, and numbers without leading zeros or the v of
    a version."""
    text = re.sub(r"\s*([-/])\s*", r"\1", text.casefold())
    return re.sub(r"(?<![\d.])0+(?=\d)|\Av(?=\d)", "", text)
