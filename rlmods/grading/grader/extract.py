r"""Extraction of the final answer from a response: the last part that is marked as an answer, or
None.

Every pattern is linear: it is applied at one position, or each of its matches consumes the text
that it has read. So extraction needs no deadline. An unmarked last number in a long response is not
an answer, so that numbers in passing earn nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlmods.grading.grader.sentence import concluded, is_denied, is_taken_back, stated, without_lead
from rlmods.grading.grader.style import MAX_CHARS, closing_brace
from rlmods.grading.grader.units import read_unit
from rlmods.grading.turns import without_thoughts

MAX_UNMARKED_CHARS = 300
"""A response without any marker counts as an answer only up to this length."""
MAX_GAP_CHARS = 120
"""Longer text between two marks does not join them."""
HEDGE_CHARS = 80
"""Characters before an answer that may name an alternative."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s${}\\]+)")
_DELIMITER = (
    r"[\s$~&]|\\[()\[\] ,;:!>/]|\\(?:q?quad|enspace|thinspace|hfill)(?![A-Za-z])"
    r"|\\[hv]space\*?\{[^{}]{0,20}\}|\\\\"
)
_AND = (
    r"\\(?:text|textrm|mathrm|mbox)\{\s*(?:and|or|[,;/])?\s*\}"
    r"|\\(?:l?or|l?and|vee|wedge)(?![A-Za-z])|and\b|or\b|[,;/|]"
)
_LABEL = r"(?:\([a-z0-9]{1,3}\)\s*|[-*]\s+)?(?:[A-Za-z](?:_\{?\d\}?)?\s*=\s*)?"
_JOINT = re.compile(
    rf"(?:{_DELIMITER})*(?:(?:[a-z]+\s+)?(?:{_AND})(?:{_DELIMITER}|{_AND})*)?{_LABEL}[\s$]*"
)
"""Text between two marks of one list."""
_HEDGE = re.compile(r"\b(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b", re.IGNORECASE)
_HEDGE_AFTER = re.compile(
    r"(?:[\s$.,;:!*)}\]]|\\[)\]])*\(?"
    r"(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b,?\s*"
    r"(?!equivalently|simply|approximately|about|more|less|fewer)"
    r"((?:[a-z]+\s+){0,3}(?:[-+$\d\\(*]|[a-zA-Z]\b)[^\n.]{0,80})",
    re.IGNORECASE,
)
_HEDGE_BEFORE = re.compile(
    r"([-+\w.\\${}]*[\w}$])[\s,;]*\b(?:or|alternatively|maybe|perhaps|possibly)\b[^\n.]{0,20}\Z",
    re.IGNORECASE,
)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_HEADING = re.compile(r"\A(?:the\s+)?(?:final\s+)?answer\b[\s:*]*", re.IGNORECASE)
_EMPHASIS = r"(?:[*_}]{1,3}|</[a-z]{1,6}>)?"
_STATED = re.compile(
    rf"(?<![A-Za-z0-9])(?:answer{_EMPHASIS}\s*(?:is\b|:)|ans\.?\s*:){_EMPHASIS}[:\s]*"
    r"|\banswer\*\*\s*\n\s*"
    r"|^[#*_ \t]{0,20}(?:the[ \t]+)?(?:final[ \t]+)?answer[*_ \t]*\n\s*",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(
    r"\$\$((?:[^$\\]|\\.)+)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_FORMULA = r"\$[^$\n]+\$"
_FORMULAS = re.compile(
    rf"{_FORMULA}(?:\s*(?:[,;]\s*(?:(?:and|or)\b\s*)?|(?:and|or)\b\s*){_FORMULA})++"
    r"(?=\.?\s*\Z|\.\s|\n)"
)
"""Two or more formulas, joined by commas, "and" or "or", that are all of their sentence."""
_PERCENT_AFTER = re.compile(r"(?:\$|\\[)\]])?\s{0,3}(?:\\?%|percent\b|pct\b)")
_UNIT_AFTER = re.compile(
    r"\$?(?:\s|~|\\[,; ]){0,5}\\(?:text|textrm|mathrm|mbox)\{([^{}\n]{1,40})\}(?:\^\{?[23]\}?)?"
)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|[。｡]|\n|,?\s(?:because|since)\b")
_FILLER = re.compile(
    r"\A(?:(?:therefore|thus|then|hence|simply|exactly|just|indeed|given by|equal to)\b[\s,:]*)+",
    re.IGNORECASE,
)


class Mark(NamedTuple):
    """A part of a text that is marked as an answer."""

    start: int
    end: int
    content: str | None
    """None if the mark is never closed."""


def extract(text: str) -> str | None:
    r"""Return the final answer in `text`, or None.

    Only the first turn (`first_turn`) after its last `</think>` counts; an unclosed `<think>` means
    no answer. Then the first of these rules that applies: the last `\boxed{}` (boxes side by side,
    or joined by "and", "or" or a comma, are one list), `<answer>`, `####`, "Answer:", a heading
    "Answer" or "the answer is", the number that a last sentence states which begins with
    "Therefore" (`sentence`), and for a short text its last formula, the number that its last
    sentence states, or the whole text. An alternative that follows the answer ("or 6") is a part of
    it; a marked answer that is denied beside its marker is none."""
    text = without_thoughts(text)
    if "<think>" in text:
        return None
    text = text.strip()
    rules = [_boxed, _tagged, _after_hashes, _after_words, concluded]
    if len(text) <= MAX_UNMARKED_CHARS:
        rules += [_last_formula, stated, without_lead]
    answers = (rule(text) for rule in rules)
    answer = next((answer for answer in answers if answer is not None), "")
    answer = answer.strip().strip("*_`").strip()
    return answer if 0 < len(answer) <= MAX_CHARS else None


def extract_gold(gold: str) -> str:
    r"""Return the answer of a gold text: the `\boxed{}`, `####` line or stated final answer of a
    whole solution, otherwise all of it."""
    marks = boxes(gold)
    if marks:
        _, contents = _joined(gold, marks, _JOINT.fullmatch)
        contents[-1] += _suffix(gold, marks[-1].end)
        return ", ".join(contents).strip()
    answer = _after_hashes(gold)
    if answer is None and len(gold) > MAX_UNMARKED_CHARS:
        answer = _after_words(gold)
    return (gold if answer is None else answer).strip()


def boxes(text: str) -> list[Mark]:
    r"""Return each outermost `\boxed{}` or `\fbox{}`."""
    marks: list[Mark] = []
    match = _BOX.search(text)
    while match is not None:
        end: int | None = match.end()
        content: str | None = match[1].rstrip(".,;")
        if match[1] == "{":
            end = closing_brace(text, match.end())
            content = None if end is None else text[match.end() : end]
        position = len(text) if end is None else end + (match[1] == "{")
        marks.append(Mark(match.start(), position, content))
        match = _BOX.search(text, position)
    return marks


def _joined(
    text: str, marks: Sequence[Mark], joins: Callable[[str], object]
) -> tuple[int, list[str]]:
    """Return the contents of the last mark and of those before it that are joined to it, and where
    the first of them starts."""
    start = marks[-1].start
    contents = [marks[-1].content or ""]
    for mark in reversed(marks[:-1]):
        gap = text[mark.end : start]
        too_long = len(gap) > MAX_GAP_CHARS or len(contents) > MAX_CHARS
        if mark.content is None or too_long or not joins(gap):
            break
        start = mark.start
        if mark.content not in contents:
            contents.insert(0, mark.content)
    return start, contents


def _joins(gap: str) -> bool:
    """Return True if the text between two marks makes them one list, or leaves open which one is
    meant."""
    return _JOINT.fullmatch(gap) is not None or _HEDGE.search(gap) is not None


def _boxed(text: str) -> str | None:
    """Return the content of the last box, or of the boxes joined to it, with the alternatives
    beside them."""
    marks = boxes(text)
    if not marks:
        return None
    start, contents = _joined(text, marks, _joins)
    if marks[-1].content is None or is_denied(text, start):
        return ""
    contents[-1] += _suffix(text, marks[-1].end)
    return _with_alternatives(text, start, ", ".join(contents), marks[-1].end)


def _with_alternatives(text: str, start: int | None, answer: str, end: int) -> str:
    """Return `answer` with the alternatives before `start` and after `end` of `text`; "" if it is
    taken back there."""
    if is_taken_back(text, end):
        return ""
    before = None
    if start is not None:
        before = _HEDGE_BEFORE.search(text[max(0, start - HEDGE_CHARS) : start])
    after = _HEDGE_AFTER.match(text, end)
    parts = [before and before[1], answer, after and after[1]]
    return ", ".join(filter(None, parts))


def _suffix(text: str, end: int) -> str:
    """Return the percent sign or unit that follows an answer."""
    if _PERCENT_AFTER.match(text, end):
        return "%"
    unit = _UNIT_AFTER.match(text, end)
    if unit is None or read_unit(unit[1].replace("~", " ")) is None:
        return ""
    return unit[0].replace("$", "")


def _tagged(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>`."""
    marks: list[Mark] = []
    end = len(text)
    for _ in range(2):
        close = text.rfind("</answer>", 0, end)
        start = text.rfind("<answer>", 0, max(close, 0))
        if start < 0:
            break
        content = text[start + len("<answer>") : close]
        content = content if marks else _after_words(content) or content
        marks.insert(0, Mark(start, close + len("</answer>"), content))
        end = start
    if not marks:
        return None
    if is_denied(text, marks[-1].start):
        return ""
    _, contents = _joined(text, marks, _HEDGE.search)
    return _with_alternatives(text, None, ", ".join(contents), marks[-1].end)


def _after_hashes(text: str) -> str | None:
    """Return the last `####` line that is not a heading without content, without the word
    "Answer"."""
    for match in reversed(list(_HASHES.finditer(text))):
        line = _HEADING.sub("", match[1])
        if line.strip():
            return "" if is_taken_back(text, match.end()) else line
    return None


def _after_words(text: str) -> str | None:
    """Return the text after the last "Answer:", "the answer is" or heading "Answer", up to the end
    of its sentence."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return None
    if is_denied(text, statements[-1].start()):
        return ""
    rest = text[statements[-1].end() :].strip().strip("*_").strip()
    rest = _FILLER.sub("", rest)
    formulas = _FORMULAS.match(rest)
    if formulas is not None:
        return formulas[0]
    formula = _MATH.match(rest)
    if formula is not None:
        answer = formula[formula.lastindex or 0] + _suffix(rest, formula.end())
        return _with_alternatives(rest, None, answer, formula.end())
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0]
    answer = sentence.rpartition(" is ")[2].strip().strip("*_")
    return _with_alternatives(rest, None, answer, len(sentence))


def _last_formula(text: str) -> str | None:
    """Return the last formula of a short text, or the formulas joined to it, with an alternative
    before it."""
    marks = [Mark(x.start(), x.end(), x[x.lastindex or 0]) for x in _MATH.finditer(text)]
    if not marks:
        return None
    start, contents = _joined(text, marks, _joins)
    contents[-1] += _suffix(text, marks[-1].end)
    before = _HEDGE_BEFORE.search(text[:start])
    return ", ".join([before[1], *contents] if before is not None else contents)
