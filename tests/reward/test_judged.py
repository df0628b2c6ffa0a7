"""Rewards by a judge: win rates within a group, and ratings over HTTP on loopback."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rlmods.errors import UserError
from rlmods.judge import LLM, Rule
from rlmods.judge.question import CUT_OFF
from rlmods.reward import Preference, Rating, WeightedSum
from rlmods.types import Prompt, Response
from tests.judge.server import serve
from tests.reward.samples import response


def respond(text: str, prompt: str = "a", answer: str | None = None) -> Response:
    return Response(Prompt(id=prompt, text=prompt, answer=answer), text=text)


def longer(prompt: Prompt, first: str, second: str) -> float:
    return 0.5 if len(first) == len(second) else float(len(first) > len(second))


class TestPreference:
    def test_is_the_win_rate(self) -> None:
        assert Preference(longer)(
            [respond("x"), respond("xxx"), respond("xx"), respond("yy")]
        ).values == pytest.approx([0, 1, 0.5, 0.5])

    def test_mean_over_a_group_is_one_half(self) -> None:
        values = Preference(longer)([respond("x" * n) for n in (1, 1, 2, 5, 5, 7, 9)]).values
        assert sum(v for v in values if v is not None) == pytest.approx(3.5)

    def test_compares_within_groups_and_keeps_the_order_of_rows(self) -> None:
        rows = [respond("x", "a"), respond("y" * 9, "b"), respond("xx", "a"), respond("y", "b")]
        assert Preference(longer)(rows).values == [0.0, 1.0, 1.0, 0.0]
        assert Preference(longer)(rows[::-1]).values == [0.0, 1.0, 1.0, 0.0][::-1]

    def test_two_occurrences_of_a_prompt_are_two_groups(self) -> None:
        rows = [respond(text) for text in ("x", "xx", "xxx", "xxxx")]
        later = [replace(row, prompt=replace(row.prompt, time=1)) for row in rows[2:]]
        assert Preference(longer)([*rows[:2], *later]).values == [0.0, 1.0, 0.0, 1.0]

    def test_equal_texts_are_a_tie_without_a_comparison(self) -> None:
        compared: list[Any] = []

        def recording_judge(prompt: Prompt, first: str, second: str) -> float:
            compared.append((first, second))
            return longer(prompt, first, second)

        assert Preference(recording_judge)([respond("x"), respond("x"), respond("xx")]).values == [
            0.25,
            0.25,
            1.0,
        ]
        assert compared == [("x", "xx")]

    def test_abstains_without_a_verdict_and_counts_the_pair(self) -> None:
        scores = Preference(lambda *_: None)([respond("x"), respond("xx"), respond("y", "single")])
        assert scores.values == [None, None, None]
        assert scores.counts == {"without_verdict": 1}

    def test_includes_the_counts_of_the_judge(self) -> None:
        class CountingJudge:
            counts: ClassVar = Counter(requests=5)

            def __call__(self, *_: Any) -> float:
                self.counts["requests"] += 1
                return 1.0

        assert Preference(CountingJudge())([respond("x"), respond("xx")]).counts == {
            "requests": 1,
            "without_verdict": 0,
        }

    def test_with_a_rule_as_judge(self) -> None:
        total = WeightedSum({"preference": {"reward": Preference(Rule())}})
        assert total.needs.answer
        assert total(
            [respond(r"\boxed{1}", answer="1"), respond(r"\boxed{2}", answer="1")]
        ).values == [1.0, 0.0]

    def test_rejects_a_missing_judge(self) -> None:
        with pytest.raises(UserError, match=r"type \+judge@reward\.judge=llm"):
            Preference()


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
