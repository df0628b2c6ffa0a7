"""Tests of a language model's ratings, over HTTP on loopback."""

import re
from dataclasses import replace
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.judge import LLM, Rule
from rlmods.judge.question import CUT_OFF
from rlmods.reward import Rating
from tests.judge.server import serve
from tests.reward.samples import response


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def rating(url: str, template: str | None = "{prompt}|{response}", **fields: Any) -> Rating:
    return Rating(
        LLM(**{"url": url, "model": "m", "backoff_s": 0.0, "retries": 1, **fields}), template
    )


def rate_by_length(body: dict[str, Any], number: int) -> str:
    return f"It is long.\nRating: {len(body['messages'][0]['content'].split('|')[1])}"


class TestRating:
    def test_is_the_rating_of_the_model(self) -> None:
        with serve(rate_by_length) as server:
            scores = rating(server.url)(
                [response("xxx"), response("x" * 10), response("xxx"), response("x" * 11)]
            )
        assert scores.values == [0.3, 1.0, 0.3, None]
        assert sorted(server.questions) == [
            "?|xxx",
            "?|" + "x" * 10,
            "?|" + "x" * 11,
            "?|" + "x" * 11,
        ]
        assert scores.counts["requests"] == 4
        assert scores.counts["without_verdict"] == 2

    def test_a_truncated_response_is_marked(self) -> None:
        with serve(rate_by_length) as server:
            rating(server.url)([response("xxx"), replace(response("xxx"), finish="length")])
        assert sorted(server.questions) == ["?|xxx", f"?|xxx{CUT_OFF}", f"?|xxx{CUT_OFF}"], (
            "the marked text has no rating and is asked again"
        )

    def test_default_template_contains_the_response(self) -> None:
        with serve(lambda body, number: "7") as server:
            assert rating(server.url, None)([response("forty two")]).values == [0.7]
        assert re.search(r"<response (\w{16})>\nforty two\n</response \1>", server.questions[0])

    def test_template_may_contain_the_answer(self) -> None:
        with serve(lambda body, number: "5/10") as server:
            reward = rating(server.url, "{response}|{answer}")
            assert reward.needs.answer
            assert reward([response("a", "gold")]).values == [0.5]
        assert server.questions == ["a|gold"]
        assert not rating("http://x", None).needs.answer

    @pytest.mark.parametrize("judge", [None, Rule()])
    def test_rejects_a_judge_that_cannot_rate(self, judge: Any) -> None:
        with pytest.raises(UserError, match=r"type \+judge@reward\.judge=llm"):
            Rating(judge)

    @pytest.mark.parametrize(
        ("template", "words"),
        [("{prompt}", "{response} is missing"), ("{response} {first}", "unknown field {first}")],
    )
    def test_rejects_invalid_templates(self, template: str, words: str) -> None:
        with pytest.raises(UserError, match=words):
            rating("http://x", template)
