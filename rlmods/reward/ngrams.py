"""n-grams of words, for rewards that compare texts."""

from __future__ import annotations

from rlmods.errors import UserError


def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    """Return the n-grams of `size` words of a text in lower case; none for a text of fewer words.
    Words are separated by whitespace."""
    words = text.lower().split()
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def check_size(reward: object, size: object) -> None:
    """
    Raises:
        UserError: `size` is not a positive integer.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UserError(
            f"{type(reward).__name__}: size={size} is not a positive integer: type reward.size=3"
        )
