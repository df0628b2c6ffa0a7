"""What an answer takes from its question: the words that are counted, as in "72 clips" where the
question asks for clips, and the name of what is asked, as in "m + n = 33"."""

from __future__ import annotations

import re
from functools import lru_cache

from rlmods.grading.grader.style import WORD, compact, flat
from rlmods.grading.grader.syntax import word_set
from rlmods.grading.grader.units import read_unit
from rlmods.grading.grader.values import NUMERALS, plain_number

_NUMBER = rf"[-+]?\\?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?|{'|'.join(NUMERALS)}"
_COUNTED = re.compile(
    r"(?P<before>(?:[A-Za-z][A-Za-z',:-]* ){0,12})"
    rf"(?P<number>{_NUMBER})\\?\$? ?"
    r"(?P<words>(?<= )[A-Za-z][A-Za-z' -]{1,60}|)\.?",
    re.ASCII | re.IGNORECASE,
)
"""A sentence with one number."""
_FILLER = word_set(
    "of the a an in total altogether are is was were left remaining there so thus therefore she he "
    "they it we answer needs need has have get gets got"
)
_CHANGES = word_set(
    "more less fewer than half halves third quarter twice thrice double triple per times dozen "
    "score gross pair hundred thousand million billion trillion percent over under plus minus not "
    "no never negative to out or nor squared cubed factorial about almost nearly approximately "
    "around least most mod base power fifth sixth seventh eighth ninth tenth hundredth "
    "fourth twelfth thousandth if unless except cannot without"
)
"""Words that change a number, compare it with another, or restrict it."""
_SCALE_ASKED = re.compile(
    r"\bhow many (dozen|score|pair|hundred|thousand|million|billion|trillion)", re.IGNORECASE
)
_PERCENT_ASKED = re.compile(r"\b(?:what|how many) percent(?:age)?\b", re.IGNORECASE)
_PERCENT = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?) ?(?:\\?%|percent)", re.ASCII)
_IS_GIVEN = re.compile(r"=|is-?\d|equals")
"""What follows a name, in a text without spaces, whose value the question gives."""
_VALUE = re.compile(r"[-\d.,/ ]+")
"""A number instead of a sum: an equation of two numbers states neither."""
_BOLD = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)")
_LABEL = re.compile(r"[^=<>!~]{3,60}=(?!=)")


def as_asked(answer: str, gold: str, question: str) -> str:
    """Return an answer without the name of what the question asks for, and beside a gold that is a
    plain number without words of the question. Other answers are unchanged.

    A percent sign is left out where the question asks what percent, whatever the gold's notation.
    Other units of measurement stay, as they are converted. So do words that change the number,
    unless the question asks how many dozens there are."""
    answer = _without_label(answer, gold, question)
    if not question or plain_number(gold.strip(" $")) is None:
        return answer
    percent = _PERCENT.fullmatch(flat(answer).strip(" $"))
    if percent is not None and _PERCENT_ASKED.search(question):
        return percent[1]
    return _number_stated(answer, question) or answer


def _without_label(answer: str, gold: str, question: str) -> str:
    """Return an answer such as `m+n=33` without its left side, unless the gold has one too."""
    label = _LABEL.match(answer)
    if label is None or "=" in gold or not _asks_for(compact(label[0][:-1]), question):
        return answer
    return answer[label.end() :]


def _number_stated(answer: str, question: str) -> str | None:
    """Return the number of an answer whose words all occur in the question, such as "Ann sold 17 +
    34 = 51 crates"; None if there is a word that is not in the question or changes the number."""
    computed, _, sentence = flat(_BOLD.sub("", answer)).strip(" $").rpartition("= ")
    match = _COUNTED.fullmatch(sentence)
    if match is None or _VALUE.fullmatch(computed) or read_unit(match["words"]) is not None:
        return None
    words = WORD.findall(f"{computed} {match['before']} {match['words']}")
    nouns = {_stem(word) for word in words if word.casefold() not in _FILLER}
    spoken = nouns | set(map(str.casefold, words))
    scales_asked = set(_SCALE_ASKED.findall(question.casefold()))
    changes = (_CHANGES | NUMERALS.keys()) & spoken - scales_asked
    if changes or not nouns <= _stems(question):
        return None
    return NUMERALS.get(match["number"].casefold(), match["number"])


def _asks_for(name: str, question: str) -> bool:
    """Return True if a name of several characters occurs in the question, and is not a side of an
    equation there."""
    text = compact(question)
    start = text.find(name) if len(name) > 2 else -1
    return start >= 0 and not _IS_GIVEN.match(text, start + len(name))


@lru_cache(maxsize=1024)
def _stems(question: str) -> frozenset[str]:
    return frozenset(map(_stem, WORD.findall(question)))


def _stem(word: str) -> str:
    """Return a word in small letters without the ending of its plural."""
    word = word.casefold().removesuffix("'s")
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("ves") and len(word) > 4:
        return word[:-3] + "f"
    if word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
        return word[:-2].removesuffix("z")
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
