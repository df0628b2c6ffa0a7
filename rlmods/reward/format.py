"""Reward for keeping to an output format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rlmods.grading.grader.extract import boxes
from rlmods.grading.turns import first_turn
from rlmods.reward.checks import check_choice
from rlmods.types import Response, Scores

Style = Literal["think_answer", "answer", "boxed"]

_THINK_ANSWER = re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*)</answer>", re.DOTALL)


@dataclass(frozen=True)
class Format:
    r"""1.0 if the first turn of the response (`first_turn`) has the format `style`, else 0.0. Every
    part must contain more than whitespace.

    - think_answer: one `<think>...</think>` at the start, then one `<answer>...</answer>`, and
      nothing else (arXiv:2501.12948)
    - answer: exactly one `<answer>...</answer>`
    - boxed: exactly one `\boxed{...}`
    """

    style: Style = "answer"
    """think_answer, answer or boxed."""

    def __post_init__(self) -> None:
        check_choice(self, "style", get_args(Style))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        has_format = _CHECKS[self.style]
        return Scores([float(has_format(first_turn(response.text))) for response in responses])


def _think_answer(text: str) -> bool:
    return _has_parts(text, _THINK_ANSWER.fullmatch(text), "think", "answer")


def _answer(text: str) -> bool:
    return _has_parts(text, _ANSWER.search(text), "answer")


def _boxed(text: str) -> bool:
    matches = boxes(text)
    return len(matches) == 1 and bool((matches[0][2] or "").strip())


def _has_parts(text: str, match: re.Match[str] | None, *tags: str) -> bool:
    """Return whether each tag occurs once, and no part between tags is empty."""
    if any(text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1 for tag in tags):
        return False
    return match is not None and all(part.strip() for part in match.groups())


_CHECKS: Mapping[Style, Callable[[str], bool]] = {
    "think_answer": _think_answer,
    "answer": _answer,
    "boxed": _boxed,
}
