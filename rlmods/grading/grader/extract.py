r"""Extraction of the final answer from a response: the last part that is marked as an answer, or
None.

Every pattern is linear: it is applied at one position, or each of its matches consumes the text
that it has read. So extraction needs no deadline. An unmarked last number in a long response is not
an answer, so that numbers in passing earn nothing."""

from __future__ import annotations

import re

from rlmods.grading.grader.sentence import concluded, is_denied, is_taken_back, stated, without_lead
from rlmods.grading.grader.style import MAX_CHARS, closing_brace
from rlmods.grading.grader.units import read_unit
from rlmods.grading.turns import without_thoughts

MAX_UNMARKED_CHARS = 300
"""A response without any marker counts as an answer only up to this length."""
MAX_GAP_CHARS = 120
"""Longer text between two boxes does not join them."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s${}\\]+)")
_DELIMITER = (
    r"[\s$~&]|\\[()\[\] "
    r",;:!>/]|\\(?:q?quad|enspace|thinspace|hfill)(?![A-Za-z])|\\[hv]space\*?\{[^{}]{0,20}\}|\\\\"
)
_AND = r"\\(?:text|textrm|mathrm|mbox)\{\s*(?:and|or|[,;/])?\s*\}|\\(?:l?or|l?and|vee|wedge)(?![A-Za-z])|and\b|or\b|[,;/|]"
_LABEL = r"(?:\([a-z0-9]{1,3}\)\s*|[-*]\s+)?(?:[A-Za-z](?:_\{?\d\}?)?\s*=\s*)?"
_JOINED_BOXES = re.compile(
    rf"(?:{_DELIMITER})*(?:(?:[a-z]+\s+)?(?:{_AND})(?:{_DELIMITER}|{_AND})*)?{_LABEL}[\s$]*"
)
_HEDGE = re.compile(r"\b(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b", re.IGNORECASE)
_HEDGE_AFTER = re.compile(
    r"(?:[\s$.,;:!*)}\]]|\\[)\]])*\(?(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b,?\s*"
    r"(?!equivalently|simply|approximately|about|more|less|fewer)((?:[a-z]+\s+){0,3}(?:[-+$\d\\(*]|[a-zA-Z]\b)[^\n.]{0,80})",
    re.IGNORECASE,
)
_HEDGE_BEFORE = re.compile(
    r"([-+\w.\\${}]*[\w}$])[\s,;]*\b(?:or|alternatively|maybe|perhaps|possibly)\b[^\n.]{0,20}\Z",
    re.IGNORECASE,
)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_HEADING = re.compile(r"(?:the\s+)?(?:final\s+)?answer\b[\s:*]*", re.IGNORECASE)
_EMPHASIS = r"(?:[*_}]{1,3}|</[a-z]{1,6}>)?"
_STATED = re.compile(
    rf"(?<![A-Za-z0-9])(?:answer{_EMPHASIS}\s*(?:is\b|:)|ans\.?\s*:){_EMPHASIS}[:\s]*|\banswer\*\*\s*\n\s*|"
    r"^[#*_ \t]{0,20}(?:the[ \t]+)?(?:final[ \t]+)?answer[*_ \t]*\n\s*",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(
    r"\$\$((?:[^$\\]|\\.)+)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_FORMULA = re.compile(r"\$[^$\n]+\$")
_JOIN = re.compile(r"\s*(?:[,;]\s*(?:(?:and|or)\b\s*)?|(?:and|or)\b\s*)")
_END_OF_LIST = re.compile(r"\.?\s*\Z|\.\s|\n")
_PERCENT_AFTER_BOX = re.compile(r"(?:\$|\\[)\]])?\s{0,3}(?:\\?%|percent\b|pct\b)")
_UNIT_AFTER_BOX = re.compile(
    r"\$?(?:\s|~|\\[,; ]){0,5}\\(?:text|textrm|mathrm|mbox)\{([^{}\n]{1,40})\}(?:\^\{?[23]\}?)?"
)
_UNIT_AFTER = re.compile(r"\s*(\\?%|percent|pct)")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|[。｡]|\n|,?\s(?:because|since)\b")
_FILLER = re.compile(
    r"(?:(?:therefore|thus|then|hence|simply|exactly|just|indeed|given by|equal to)\b[\s,:]*)+",
    re.IGNORECASE,
)


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
    answer = _boxed(text)
    if answer is None:
        answer = _tagged(text)
    if answer is None:
        answer = _after_hashes(text)
    if answer is None:
        answer = _stated(text)
    if answer is None:
        answer = concluded(text)
    if answer is None and len(text) <= MAX_UNMARKED_CHARS:
        answer = _last_formula(text) or stated(text) or without_lead(text)
    answer = (answer or "").strip().strip("*_`").strip()
    return answer if 0 < len(answer) <= MAX_CHARS else None


def extract_gold(gold: str) -> str:
    r"""Return the answer of a gold text: the `\boxed{}`, `####` line or stated final answer of a
    whole solution, otherwise all of it."""
    answer = _boxed(gold, hedges=False)
    if answer is None:
        answer = _after_hashes(gold)
    if answer is None and len(gold) > MAX_UNMARKED_CHARS:
        answer = _stated(gold)
    return (gold if answer is None else answer).strip()


def boxes(text: str) -> list[tuple[int, int, str | None]]:
    r"""Return (start, end, content) of each outermost `\boxed{}` or `\fbox{}`; content is None if
    the brace is never closed."""
    spans: list[tuple[int, int, str | None]] = []
    position = 0
    while match := _BOX.search(text, position):
        if match[1] != "{":
            content: str | None = match[1].rstrip(".,;")
            position = match.end()
        else:
            end = closing_brace(text, match.end())
            content = None if end is None else text[match.end() : end]
            position = len(text) if end is None else end + 1
        spans.append((match.start(), position, content))
    return spans


def _boxed(text: str, *, hedges: bool = True) -> str | None:
    """Return the content of the last box, or of the boxes joined to it, with the alternatives
    beside them if `hedges`."""
    spans = boxes(text)
    if not spans:
        return None
    start, last_end, answer = spans[-1]
    if answer is None:
        return ""
    contents = [answer]
    for previous_start, end, content in reversed(spans[:-1]):
        if (
            content is None
            or sum(map(len, contents)) > MAX_CHARS
            or not _joins(text[end:start], hedges)
        ):
            break
        start = previous_start
        if content not in contents:
            contents.insert(0, content)
    if _PERCENT_AFTER_BOX.match(text, last_end):
        contents[-1] += "%"
    elif (unit := _UNIT_AFTER_BOX.match(text, last_end)) is not None and read_unit(
        unit[1].replace("~", " ")
    ) is not None:
        contents[-1] += text[unit.start() : unit.end()].replace("$", "")
    if not hedges:
        return ", ".join(contents)
    if is_denied(text, start):
        return ""
    if (before := _HEDGE_BEFORE.search(text[max(0, start - 80) : start])) is not None:
        contents.insert(0, before[1])
    return _with_alternative(", ".join(contents), text, last_end)


def _joins(gap: str, hedges: bool) -> bool:
    """Return True if the text between two boxes makes them one list, or leaves open which one is
    meant."""
    return len(gap) <= MAX_GAP_CHARS and (
        _JOINED_BOXES.fullmatch(gap) is not None or (hedges and _HEDGE.search(gap) is not None)
    )


def _with_alternative(answer: str, text: str, end: int) -> str:
    """Return `answer` with the alternative that follows it at position `end` of `text`, if any; ""
    if it is taken back there."""
    if is_taken_back(text, end):
        return ""
    other = _HEDGE_AFTER.match(text, end)
    return answer if other is None else f"{answer}, {other[1]}"


def _tagged(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>`."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    if is_denied(text, start):
        return ""
    answer = text[start + len("<answer>") : end]
    answer = _stated(answer) or answer
    previous = text.rfind("</answer>", 0, start)
    if (
        previous >= 0
        and start - previous <= MAX_GAP_CHARS
        and _HEDGE.search(text, previous + len("</answer>"), start)
    ):
        return f"{text[text.rfind('<answer>', 0, previous) + len('<answer>') : previous]}, {answer}"
    return _with_alternative(answer, text, end + len("</answer>"))


def _after_hashes(text: str) -> str | None:
    """Return the last `####` line that is not a heading without content, without the word
    "Answer"."""
    for match in reversed(list(_HASHES.finditer(text))):
        line = _HEADING.sub("", match[1], count=1) if _HEADING.match(match[1]) else match[1]
        if line.strip():
            return "" if is_taken_back(text, match.end()) else line
    return None


def _stated(text: str) -> str | None:
    """Return the text after the last "Answer:", "the answer is" or heading "Answer", up to the end
    of its sentence."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return None
    if is_denied(text, statements[-1].start()):
        return ""
    rest = text[statements[-1].end() :].strip().strip("*_").strip()
    rest = rest[filler.end() :] if (filler := _FILLER.match(rest)) is not None else rest
    if (formulas := _formulas(rest)) is not None:
        return formulas
    if (formula := _MATH.match(rest)) is not None:
        return _with_alternative(_with_unit(rest, formula), rest, formula.end())
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0]
    return _with_alternative(
        sentence.rpartition(" is ")[2].strip().strip("*_"), rest, len(sentence)
    )


def _formulas(text: str) -> str | None:
    """Return two or more formulas at the start of `text`, joined by commas, "and" or "or", up to
    the end of their sentence."""
    formula = _FORMULA.match(text)
    count = end = 0
    while formula is not None:
        count, end = count + 1, formula.end()
        join = _JOIN.match(text, end)
        formula = None if join is None else _FORMULA.match(text, join.end())
    return text[:end] if count > 1 and _END_OF_LIST.match(text, end) else None


def _last_formula(text: str) -> str | None:
    """Return the last formula of a short text, or the formulas joined to it, with an alternative
    before it."""
    formulas = list(_MATH.finditer(text))
    if not formulas:
        return None
    start, bodies = formulas[-1].start(), [_with_unit(text, formulas[-1])]
    for formula in reversed(formulas[:-1]):
        if not _joins(text[formula.end() : start], hedges=True):
            break
        start = formula.start()
        bodies.insert(0, next(filter(None, formula.groups())))
    if (before := _HEDGE_BEFORE.search(text[:start])) is not None:
        bodies.insert(0, before[1])
    return ", ".join(bodies)


def _with_unit(text: str, formula: re.Match[str]) -> str:
    """Return the formula, with a percent sign that follows it."""
    body = next(group for group in formula.groups() if group is not None)
    return body + "%" if _UNIT_AFTER.match(text, formula.end()) else body
