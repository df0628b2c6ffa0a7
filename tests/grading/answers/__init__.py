"""Responses that a person would grade without doubt, made by generators from seeds: honest ones in
the styles of models, hostile ones by the hole they try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Row(NamedTuple):
    family: str
    gold: str
    text: str
    """The whole response."""
    question: str = "?"


def boxed(family: str, gold: str, *answers: str) -> Iterator[Row]:
    r"""Rows of answers in `\boxed{}`."""
    return (Row(family, gold, rf"So the answer is $\boxed{{{answer}}}$.") for answer in answers)


def texts(family: str, gold: str, *responses: str) -> Iterator[Row]:
    return (Row(family, gold, response) for response in responses)
