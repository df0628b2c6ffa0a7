"""Penalty for repeated n-grams."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.settings.bounds import Count, bounded
from rlmods.types import Response, Scores


def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    """Return the n-grams of `size` words of a text in lower case; none for a text of fewer words.
    Words are separated by whitespace."""
    words = text.lower().split()
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def repetition_penalty(text: str, size: int) -> float | None:
    """Penalty: distinct n-grams / n-grams - 1, with n-grams of `size` words, ignoring case; None
    for a text of fewer words."""
    grams = ngrams(text, size)
    return len(set(grams)) / len(grams) - 1.0 if grams else None


@dataclass(frozen=True)
@bounded("reward")
class Repetition:
    """Repetition penalty -(1 - distinct n-grams / n-grams) over the words of a response: 0 without
    repetition, close to -1 if one phrase is repeated throughout (arXiv:2502.03373, which adds it to
    the cosine reward).

    Words are separated by whitespace, so languages without it need another term. A response of
    fewer than `size` words scores 0 and is counted under `short`."""

    size: Count = 3
    """Words per n-gram."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        penalties = [repetition_penalty(response.text, self.size) for response in responses]
        return Scores(
            [penalty or 0.0 for penalty in penalties], counts={"short": penalties.count(None)}
        )
