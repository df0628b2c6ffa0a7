"""Reward for keeping to an output format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlmods.grading.grader.extract import boxes
from rlmods.grading.turns import after_thoughts, first_turn
from rlmods.types import Response, Scores

Style = Literal["think_answer", "answer", "boxed"]

_PATTERNS = {
    "think_answer": re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.DOTALL),
    "answer": re.compile(r".*<answer>(.*)</answer>.*", re.DOTALL),
}
_TAGS = {"think_answer": ("think", "answer"), "answer": ("answer",)}


@dataclass(frozen=True)
class Format:
    r"""1.0 if the first turn of the response (`first_turn`) has the format `style`, else 0.0. Every
    part must contain more than whitespace.

    - think_answer: one `<think>...</think>` at the start, then one `<answer>...</answer>`, and
      nothing else (arXiv:2501.12948)
    - answer: exactly one `<answer>...</answer>` after the thoughts
    - boxed: exactly one `\boxed{...}` after the thoughts
    """

    style: Style = "answer"
    """think_answer, answer or boxed."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores: list[float | None] = []
        for response in responses:
            parts = self._parts(response.text)
            scores.append(float(bool(parts) and all(part.strip() for part in parts)))
        return Scores(scores)

    def _parts(self, response: str) -> Sequence[str]:
        """Return the parts of a response, none if it has another format."""
        text = first_turn(response) if self.style == "think_answer" else after_thoughts(response)
        if self.style == "boxed":
            found = boxes(text)
            return [found[0][2] or ""] if len(found) == 1 else []
        for tag in _TAGS[self.style]:
            if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
                return []
        match = _PATTERNS[self.style].fullmatch(text)
        return match.groups() if match else []
