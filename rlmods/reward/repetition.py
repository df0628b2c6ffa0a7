"""A price for saying the same again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rlmods.types import Response, Scores, UserError


def repetition_penalty(text: str, size: int) -> float | None:
    """distinct n-grams / n-grams - 1, n-grams being `size` words in a row; None for a text of fewer words. Upper and lower case are one."""
    words = text.lower().split()
    count = len(words) - size + 1
    distinct = {tuple(words[start : start + size]) for start in range(count)}
    return len(distinct) / count - 1.0 if distinct else None


@dataclass(frozen=True)
class Repetition:
    """-(1 - distinct n-grams / n-grams) of the words of a response: 0 where nothing is said twice, towards -1 where all is one phrase
    (arXiv:2502.03373, which takes it off in addition to the cosine reward).

    Words are what whitespace separates, so languages without it need another term. A response of fewer than `size` words scores 0 and is
    counted, `short`. Raises: UserError for a size that is no positive whole number.
    """

    size: int = 3
    """Words in an n-gram."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise UserError(f"Repetition: size={self.size} is no positive whole number: type reward.size=3")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        penalties = [repetition_penalty(response.text, self.size) for response in responses]
        return Scores([penalty or 0.0 for penalty in penalties], counts={"short": penalties.count(None)})
