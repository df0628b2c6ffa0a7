"""Extraction of the final answer from a response: the last part that is marked as an answer, or None.

Every rule is a linear scan. An unmarked last number in a long response is not an answer, so that numbers in passing earn nothing.
"""

from __future__ import annotations

import re

MAX_ANSWER_CHARS = 1000
"""Longer texts are not answers; this also bounds the input of the parser."""
MAX_UNMARKED_CHARS = 300
"""A response without any marker counts as an answer only up to this length."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s${}\\]+)")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$]|\\[()\[\]])*(?:[a-z]+\s+)?(?:,|;|\\q?quad|\\text\{\s*(?:and|or)\s*\}|and\b|or\b)"
    r"(?:[\s$,]|\\[()\[\]]|\\q?quad|\\text\{\s*(?:and|or)\s*\}|and\b|or\b)*(?:[A-Za-z](?:_\{?\d\}?)?\s*=\s*)?"
)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_STATED = re.compile(r"\banswer(?:\*\*)?\s*(?:is\b|:)(?:\*\*)?[:\s]*|\banswer\*\*\s*\n\s*", re.IGNORECASE)
_MATH = re.compile(r"\$\$((?:[^$\\]|\\.)+)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_FORMULAS = re.compile(r"\$[^$\n]+\$(?:(?:\s*[,;]\s*(?:and|or)?|\s+and|\s+or)\s*\$[^$\n]+\$)+(?=\s*(?:\.?\s*$|\.\s|\n))")
_UNIT_AFTER = re.compile(r"\s*(\\?%|percent|pct)")
_CHAT_TURN = re.compile(r"<\|im_(?:start|end)\|>|<\|endoftext\|>|<\|eot_id\|>")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n")


def extract(text: str) -> str | None:
    r"""Return the final answer in `text`, or None.

    Only text after the last `</think>` counts; an unclosed `<think>` means no answer. Then the first of these rules that applies:
    the last `\boxed{}` (boxes joined by "and", "or" or a comma are one list), `<answer>`, `####`, "Answer:" or "the answer is",
    and for a short text its last formula, or the whole text.
    """
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    text = _CHAT_TURN.split(text, maxsplit=1)[0].strip()
    answer = _boxed(text)
    if answer is None:
        answer = _tagged(text)
    if answer is None and (lines := _HASHES.findall(text)):
        answer = lines[-1]
    if answer is None:
        answer = _stated(text)
    if answer is None and len(text) <= MAX_UNMARKED_CHARS:
        answer = _last_formula(text) or text
    answer = (answer or "").strip()
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS else None


def extract_gold(gold: str) -> str:
    r"""Return the answer of a gold text: the `\boxed{}` or `####` line of a whole solution, otherwise all of it."""
    answer = _boxed(gold)
    if answer is None and (lines := _HASHES.findall(gold)):
        answer = lines[-1]
    return (gold if answer is None else answer).strip()


def boxes(text: str) -> list[tuple[int, int, str | None]]:
    r"""Return (start, end, content) of each outermost `\boxed{}` or `\fbox{}`; content is None if the brace is never closed."""
    spans: list[tuple[int, int, str | None]] = []
    position = 0
    while match := _BOX.search(text, position):
        if match[1] != "{":
            content: str | None = match[1].rstrip(".,;")
            position = match.end()
        else:
            end = _closing_brace(text, match.end())
            content = None if end is None else text[match.end() : end]
            position = len(text) if end is None else end + 1
        spans.append((match.start(), position, content))
    return spans


def _boxed(text: str) -> str | None:
    spans = boxes(text)
    if not spans:
        return None
    start, _, answer = spans[-1]
    if answer is None:
        return ""
    for previous_start, end, content in reversed(spans[:-1]):
        if content is None or len(answer) > MAX_ANSWER_CHARS or not _BETWEEN_BOXES.fullmatch(text[end:start]):
            break
        start, answer = previous_start, f"{content}, {answer}"
    return answer


def _closing_brace(text: str, start: int) -> int | None:
    depth, position = 1, start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return position
        position += 1
    return None


def _tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else text[start + len("<answer>") : end]


def _stated(text: str) -> str | None:
    """Text after the last "Answer:" or "the answer is", up to the end of its sentence."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return None
    rest = text[statements[-1].end() :].strip().strip("*").strip()
    if (formulas := _FORMULAS.match(rest)) is not None:
        return formulas[0]
    if (formula := _MATH.match(rest)) is not None:
        return _with_unit(rest, formula)
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0]
    return sentence.rpartition(" is ")[2].strip().strip("*")


def _last_formula(text: str) -> str | None:
    formulas = list(_MATH.finditer(text))
    return _with_unit(text, formulas[-1]) if formulas else None


def _with_unit(text: str, formula: re.Match[str]) -> str:
    """Return the formula, with a percent sign that follows it."""
    body = next(group for group in formula.groups() if group is not None)
    return body + "%" if _UNIT_AFTER.match(text, formula.end()) else body
