"""What a response claims as its answer: the last thing it marks as such, and nothing where it marks nothing.

Every rule is a linear scan. A number that merely stands last is not an answer, so that guessing in passing earns nothing.
"""

from __future__ import annotations

import re

LONGEST_ANSWER = 1000
"""Characters. A longer "answer" is no answer; it also bounds what the parser may be asked to read."""
LONGEST_BARE = 300
"""Characters. A response without any marker counts as an answer by itself only up to this length."""

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
    r"""The answer that `text` gives, or None.

    Only what follows the last `</think>` counts, and nothing does inside a `<think>` that is never closed. Then, first rule that applies:
    the last `\boxed{}` (boxes joined by "and", "or" or a comma are one list), `<answer>`, `####`, "Answer:" or "the answer is",
    and last a text that as a whole is short: its last formula, or all of it.
    """
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    text = _CHAT_TURN.split(text, maxsplit=1)[0].strip()
    found = _boxed(text)
    if found is None:
        found = _tagged(text)
    if found is None and (lines := _HASHES.findall(text)):
        found = lines[-1]
    if found is None:
        found = _stated(text)
    if found is None and len(text) <= LONGEST_BARE:
        found = _last_formula(text) or text
    found = (found or "").strip()
    return found if 0 < len(found) <= LONGEST_ANSWER else None


def extract_gold(gold: str) -> str:
    r"""The answer inside a gold text: its `\boxed{}` or `####` line if it is a whole solution, else all of it."""
    found = _boxed(gold)
    if found is None and (lines := _HASHES.findall(gold)):
        found = lines[-1]
    return (gold if found is None else found).strip()


def boxes(text: str) -> list[tuple[int, int, str | None]]:
    r"""(start, end, content) of each outermost `\boxed{}` or `\fbox{}`; the content is None where the brace is never closed."""
    found: list[tuple[int, int, str | None]] = []
    position = 0
    while match := _BOX.search(text, position):
        if match[1] != "{":
            content: str | None = match[1].rstrip(".,;")
            position = match.end()
        else:
            end = _closing_brace(text, match.end())
            content = None if end is None else text[match.end() : end]
            position = len(text) if end is None else end + 1
        found.append((match.start(), position, content))
    return found


def _boxed(text: str) -> str | None:
    found = boxes(text)
    if not found:
        return None
    start, _, answer = found[-1]
    if answer is None:
        return ""
    for before, end, content in reversed(found[:-1]):
        if content is None or len(answer) > LONGEST_ANSWER or not _BETWEEN_BOXES.fullmatch(text[end:start]):
            break
        start, answer = before, f"{content}, {answer}"
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
    """The content of the last `<answer>...</answer>`."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else text[start + len("<answer>") : end]


def _stated(text: str) -> str | None:
    """What follows the last "Answer:" or "the answer is", up to the end of its sentence."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return None
    rest = text[statements[-1].end() :].strip().strip("*").strip()
    if (several := _FORMULAS.match(rest)) is not None:
        return several[0]
    if (formula := _MATH.match(rest)) is not None:
        return _with_unit(rest, formula)
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0]
    return sentence.rpartition(" is ")[2].strip().strip("*")


def _last_formula(text: str) -> str | None:
    formulas = list(_MATH.finditer(text))
    return _with_unit(text, formulas[-1]) if formulas else None


def _with_unit(text: str, formula: re.Match[str]) -> str:
    """The formula, with a percent sign that was left outside."""
    body = next(group for group in formula.groups() if group is not None)
    return body + "%" if _UNIT_AFTER.match(text, formula.end()) else body
