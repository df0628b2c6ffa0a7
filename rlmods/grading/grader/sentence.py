r"""Numbers that a plain sentence states, and denials of an answer beside it.

A sentence states its only number after "is", "equals", "has" and similar verbs, or before "remain":
"The total is 18 dollars." A sentence that denies, doubts or restricts it states nothing: "It cannot
be 18.", "It is 18 if it rains." """

from __future__ import annotations

import re

from rlmods.grading.grader.quantity import read_quantity

MAX_SENTENCE_CHARS = 300
MAX_WORDS_AFTER = 12
"""Words that may follow the number of a sentence: "18 marbles left in the bag"."""

_END = re.compile(r"\.(?=\s|\Z)|[。｡!\n]|,?\s(?:because|since|as)\b")
_LEAD = re.compile(
    r"(?:and\s+|so\s+)?"
    r"(?:so|therefore|thus|hence|then|finally|consequently|in (?:total|conclusion))\b[,:]?\s+",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(r"\b(?:Therefore|Thus|Hence)\b,?")
_POLITE = re.compile(r"\s*I hope it is correct\.?\s*\Z")
_DIGITS = re.compile(r"(?<!\^)(?<!\^\{)\d[\d.,/]*")
_NUMBER = r"(?:\\?[$€£]\s?)?[-−]?(?:\\?[$€£]\s?)?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?:\s?\\?%)?"
_VERB = (
    r"(?:(?:must|will)\s+be|is|are|was|were|equals?|has|have|had|gets?|got|makes?|made|costs?"
    r"|needs?|takes?|took|earns?|earned|pays?|paid|spends?|spent|weighs?)"
)
_FILLER = (
    r"(?:(?:therefore|thus|then|hence|simply|exactly|just|indeed|now|equal to|given by|a total of)"
    r"[\s,:]+)*"
)
_STATED = re.compile(
    rf"[^\d=<>]*\b{_VERB}\s+{_FILLER}(?P<number>{_NUMBER})(?![\w^*+=!(\\])"
    r"(?P<after>[^\d=<>+*^]*(?:\^\{?[23]\}?)?)",
    re.ASCII | re.IGNORECASE,
)
_REMAIN = re.compile(
    rf"(?P<number>{_NUMBER})"
    r"(?P<after>\s+(?:[a-z]+\s+){0,3}(?:remains?|are left|is left|are needed|are possible))",
    re.ASCII,
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def _any_of(words: str) -> str:
    return rf"\b(?:{'|'.join(words.split())})\b"


_DOUBT = re.compile(
    _any_of(
        r"""
        not never no none nor neither nobody nothing hardly barely scarcely rarely seldom cannot
        without if unless whether until when except but only doubt\w* fail\w* den(?:y|ies|ied)
        refus\w* reject\w* unlikely likely impossible wrong\w* incorrect\w* false\w* untrue
        inaccura\w* mistake\w* mistaken errors? lies? lying might may can could would should ought
        seem\w* appear\w* suppos\w* assum\w* guess\w* think\w* thought believ\w* hop(?:e|es|ed|ing)
        wish\w* wonder\w* unsure unclear unknown say\w* said claim\w* pretend\w* imagin\w* almost
        nearly about around approximately roughly perhaps maybe possibly probably either or rather
        instead than least most more less fewer over under between times squared cubed factorial
        plus minus negative opposite hundred thousand million billion trillion dozen half quarter
        too far off short
        """
    )
    + r"|n['’]t\b|\?",
    re.IGNORECASE,
)
"""Denials, conditions, doubts, comparisons, and words that change the number beside them."""
_THAT = re.compile(
    r"(?<!see)(?<!find)(?<!found)(?<!conclude)(?<!know)(?<!get)(?<!shows)(?<!means)(?<!follows)"
    r"\s+that\s+(?:it|this|these|those|there|the (?:answer|result|total|value|sum))\b",
    re.IGNORECASE,
)
"""A statement inside another one, as in "It is rare that it is 7", unless that one is an
inference."""

_MARKUP = r"(?:[ \t$*_{(\[\"']|\n(?!\s*\n)|\\[(\[]|\\(?:text|textbf|mathbf)\{)"
_BEFORE_ANSWER = (
    r"(?:think|believe|say|claim|conclude|that|it|this|the|an?|my|our|answer|final|value|result"
    r"|total|sum|number|be|is|are|was|equals?|to|correct|exactly|really|simply|necessarily"
    r"|[a-z]\s*=)"
)
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:(?<!or )not|never|cannot|nor|neither|rather than|instead of|other than|anything but"
    r"|unlike|except)\b|n['’]t\b"
    r"|\b(?:unlikely|impossible|false|untrue|wrong|incorrect)"
    r"\s+(?:(?:that|answer|value|result|total|sum)\b|\Z)"
    r"|(?<!no )(?<!without )(?<!without a )\bdoubt(?:s|ed|ful)?\b)"
    rf"(?:\s+{_BEFORE_ANSWER}){{0,8}}{_MARKUP}*\Z",
    re.IGNORECASE,
)
_WRONG = r"(?:wrong|incorrect|false|untrue|mistaken|invalid|a mistake|an error)\b"
_DENIED_AFTER = re.compile(
    r"(?:[\s$.,;:!?*_)}\]\"']|\\[)\]]|</[a-z]{1,6}>)*\(?(?:"
    r"(?:(?:but|and|although|which|that|this|it|the answer)[,\s]+){0,3}"
    rf"(?:is|was|are|were|seems|looks)\s+(?:\w+\s+)?{_WRONG}"
    r"|(?:(?:but|which|that|this|it)[,\s]+){0,2}(?:is|was|are|were)(?:\s+not|n['’]t)\s+"
    r"(?:it|right|correct|true|(?:the|an?) (?:answer|solution))\b"
    r"|(?:is|are)\s+(?:not possible|impossible)\b"
    r"|(?:does|do|did|can)(?:\s*not|n['’]t)\s+(?:work|fit|hold|be)\b"
    r"|no\b(?=\s*[,.!:;]|\s+(?:it|wait|that)\b)"
    r"|(?:actually|wait|sorry|oops|correction|scratch that|i mean|on second thoughts?|i was wrong)"
    rf"\b|{_WRONG})",
    re.IGNORECASE,
)
CONTEXT_CHARS = 100
"""Characters before and after an answer that may deny it."""


def is_denied(text: str, start: int) -> bool:
    """Return True if the answer that begins at `start` of `text` is denied right before it."""
    return _DENIED_BEFORE.search(text[max(0, start - CONTEXT_CHARS) : start]) is not None


def is_taken_back(text: str, end: int) -> bool:
    """Return True if the answer that ends at `end` of `text` is called wrong or corrected right
    after it."""
    return _DENIED_AFTER.match(text[end : end + CONTEXT_CHARS]) is not None


def concluded(text: str) -> str | None:
    """Return the number that a last sentence states which begins with "Therefore", "Thus" or
    "Hence"."""
    end = _POLITE.sub("", text[-2 * MAX_SENTENCE_CHARS :]).strip()
    *before, sentence = _CONCLUSION.split(end)
    return _of_sentence(sentence) if before else None


def stated(text: str) -> str | None:
    """Return the number that the last sentence of a short text states."""
    return _of_sentence(re.split(r"[.!]\s+|\n", text.strip())[-1])


def without_lead(text: str) -> str:
    """Return `text` without a first word such as "Thus" or "So"."""
    lead = _LEAD.match(text)
    return text if lead is None else text[lead.end() :]


def _of_sentence(sentence: str) -> str | None:
    sentence = without_lead(sentence.strip().rstrip(".!*_ ").strip("*_ "))
    if _END.search(sentence) or len(_DIGITS.findall(sentence)) != 1:
        return None
    match = _STATED.fullmatch(sentence) or _REMAIN.fullmatch(sentence)
    if match is None or _DOUBT.search(sentence) or _THAT.search(sentence, 0, match.start("number")):
        return None
    words = match["after"].split()
    for count in range(len(words), 0, -1):
        quantity = f"{match['number']} {' '.join(words[:count])}"
        if words[count - 1] != "in" and read_quantity(quantity.lstrip("$€£\\")) is not None:
            return quantity
    is_prose = len(words) <= MAX_WORDS_AFTER and all(map(_WORD.fullmatch, words))
    return match["number"] if is_prose else None
