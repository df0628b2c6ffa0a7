"""Run with `make test ARGS=plugins/name`."""

from types import SimpleNamespace
from typing import Any

from rlmods.cli.templates.reward import Name


def response(text: str, question: str | None = "Why?") -> Any:
    prompt = SimpleNamespace(text=question, messages=None, answer=None, meta={})
    return SimpleNamespace(text=text, tokens=list(range(len(text))), finish="stop", prompt=prompt)


def test_scores_the_word() -> None:
    assert Name(word="so", value=2.0)([response("and so on"), response("no")]) == [2.0, 0.0]


def test_abstains_without_a_question() -> None:
    assert Name()([response("1", question=None)]) == [None]
