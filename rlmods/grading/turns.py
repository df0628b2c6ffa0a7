"""The part of a response that is graded: its first turn, and in that the text after the
thoughts."""

from __future__ import annotations

import re

_NOT_A_TURN = (
    r"(?!begin_of_(?!text|sentence)|end_of_(?!text|turn|sentence)|tool|channel|message|python)"
)
"""Beginnings of the names of markers inside a turn, such as those of thoughts and tools."""
_END = (
    rf"<\|{_NOT_A_TURN}[A-Za-z_▁]{{1,30}}\|>|<｜[^｜>\n]{{1,30}}｜>"
    r"|</s>|<[be]os>|<(?:start|end)_of_turn>|\[/?INST\]"
)
_TURN_END = re.compile(_END)
_TURN_START = re.compile(rf"(?:\s*(?:{_END}|<s>)(?:(?:assistant|model)\b)?)*")


def first_turn(text: str) -> str:
    """Return the text up to the first marker of a chat template, without markers and a role at its
    start.

    What a response says after its own end, such as another turn, is not a part of it. `</s>` after
    `<s>` is struck-out text, not an end."""
    match = _TURN_START.match(text)
    start = 0 if match is None else match.end()
    struck = text.find("<s>", start)
    ends = (
        end.start()
        for end in _TURN_END.finditer(text, start)
        if end[0] != "</s>" or not -1 < struck < end.start()
    )
    return text[start : next(ends, len(text))]


def without_thoughts(text: str) -> str:
    """Return the first turn after its last `</think>`."""
    return first_turn(text).rpartition("</think>")[2]


def after_thoughts(text: str) -> str:
    """Return the first turn after its last `</think>`; "" if it ends within thoughts, after a
    `<think>` that is not closed."""
    rest = without_thoughts(text)
    return "" if "<think>" in rest else rest
