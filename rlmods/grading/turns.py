"""The part of a response that is graded: its first turn, and in that the text after the
thoughts."""

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

_STRUCK_START = re.compile(r"\A\s*<s>[^<]{0,80}</s>\s*(?=[\w$\\])")
"""Struck-out text before other text, where `<s>` is not the start of the response."""


def first_turn(text: str) -> str:
    """Return the text up to the first marker of a chat template, without markers and a role at its
    start.

    What a response says after its own end, such as another turn, is not a part of it. `</s>` after
    `<s>` is struck-out text, not an end."""
    text = _STRUCK_START.sub("", text)
    match = _TURN_START.match(text)
    start = 0 if match is None else match.end()
    struck = text.find("<s>", start)
    ends = (
        end.start()
        for end in _TURN_END.finditer(text, start)
        if end[0] != "</s>" or not -1 < struck < end.start()
    )
    return text[start : next(ends, len(text))]


_THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<thoughts>": "</thoughts>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""Markers of the start and the end of thoughts, in the notations of models."""


def without_thoughts(text: str) -> str:
    """Return the first turn after its last end of thoughts, such as `</think>`."""
    turn = first_turn(text)
    ends = [turn.rfind(end) + len(end) for end in _THOUGHTS.values() if end in turn]
    return turn[max(ends, default=0) :]


def after_thoughts(text: str) -> str:
    """Return the first turn after its last `</think>`; "" if it ends within thoughts, after a
    `<think>` that is not closed."""
    rest = without_thoughts(text)
    return "" if any(start in rest for start in _THOUGHTS) else rest
