"""Whole numbers in the text of a turn."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<!\d)(?<!\d\.)-?\d{1,9}(?!\d|\.\d)")


def last_number(text: str) -> int | None:
    """Return the last whole number of at most 9 digits in a text; None if there is none. Digits of
    a longer number or of a decimal one are no number of their own."""
    numbers = _NUMBER.findall(text)
    return int(numbers[-1]) if numbers else None
