"""Words of the question as units of an answer: "72 clips" where the question asks for clips."""

from __future__ import annotations

import re
from functools import lru_cache

from rlmods.grading.grader.syntax import word_set
from rlmods.grading.grader.units import read_unit
from rlmods.grading.grader.values import plain_number

_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_GAP = re.compile(r"\\[ ,;:!]|[\s~]+")
_COUNTED = re.compile(
    r"(?P<number>[-+]?\\?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?)\\?\$? "
    r"(?P<words>[A-Za-z][A-Za-z' -]{1,60})\.?",
    re.ASCII,
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_FILLER = word_set("of the a an in total altogether are is left remaining there")
_CHANGES = word_set(
    "more less fewer than half halves third quarter twice thrice double triple per times dozen "
    "dozens score gross pair pairs hundred hundreds thousand thousands million millions billion "
    "billions trillion percent over under plus minus not no never negative to out or and nor "
    "squared cubed factorial about almost nearly approximately around least most mod base power "
    "fifth sixth seventh eighth ninth tenth hundredth"
)
"""Words that change a number, or compare it with another."""


def without_counted_noun(answer: str, gold: str, question: str) -> str:
    """Return the number of an answer whose words all occur in the question, beside a gold that is a
    plain number. Other answers are unchanged.

    Units of measurement stay, as they are converted; so do words that change the number."""
    if not question or plain_number(gold.strip(" $")) is None:
        return answer
    flat = _GAP.sub(" ", _TEXT.sub(r" \1 ", answer)).strip(" $")
    match = _COUNTED.fullmatch(flat)
    if match is None or read_unit(match["words"]) is not None:
        return answer
    words = [word.casefold() for word in _WORD.findall(match["words"])]
    known = _stems(question)
    nouns = [word for word in words if word not in _FILLER]
    if not nouns or _CHANGES.intersection(words) or not all(_stem(word) in known for word in nouns):
        return answer
    return match["number"]


@lru_cache(maxsize=1024)
def _stems(question: str) -> frozenset[str]:
    return frozenset(_stem(word.casefold()) for word in _WORD.findall(question))


def _stem(word: str) -> str:
    """Return a word without the ending of its plural."""
    word = word.removesuffix("'s")
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("ves") and len(word) > 4:
        return word[:-3] + "f"
    if word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
        return word[:-2].removesuffix("z")
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
