"""Each response graded by the reward of its prompt's source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward import Accuracy, BySource, Format, WeightedSum
from rlmods.reward.scores import as_scores
from rlmods.types import Prompt, Response, Scores


def response(
    source: str | None, text: str, answer: str | None = None, tokens: Sequence[int] = (1, 2, 3)
) -> Response:
    return Response(
        Prompt(id=f"{source}/{text}", text="x", answer=answer, source=source),
        tokens=tokens,
        text=text,
    )


MATH = WeightedSum(
    {"accuracy": {"reward": Accuracy(wrong=-1.0)}, "format": {"reward": Format(), "weight": 0.1}}
)
RESPONSES = [
    response("sums", "<answer>2</answer>", "2"),
    response("talk", "four"),
    response("sums", "3", "2"),
    response("talk", "fourteen"),
    response("words", "<answer>x</answer>"),
]


def lengths(responses: Sequence[Response]) -> Scores:
    """Knows nothing of correctness, and counts something."""
    return Scores(
        [float(len(r.text)) for r in responses],
        counts={"errors": len(responses)},
        columns={"extracted": [r.text for r in responses]},
    )


@dataclass(frozen=True)
class Steps:
    """A reward for each token."""

    needs = RewardNeeds(gives_steps=True, gives_outcomes=False)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([6.0] * len(responses), tokens=[[1.0, 2.0, 3.0]] * len(responses))


class TestScores:
    scores = as_scores(
        BySource({"sums": MATH, "talk": lengths, "words": Format()})(RESPONSES), 5, "by_source"
    )

    def test_are_those_of_each_reward_on_its_own_rows(self) -> None:
        assert self.scores.values == pytest.approx([1.1, 4.0, -1.0, 8.0, 1.0])
        alone = MATH([RESPONSES[0], RESPONSES[2]])
        assert [self.scores.values[row] for row in (0, 2)] == alone.values

    def test_correctness_is_unknown_where_the_reward_reports_none(self) -> None:
        assert self.scores.correct == [True, None, False, None, None]
        assert not self.scores.monitored

    def test_terms_counts_and_columns(self) -> None:
        assert self.scores.terms == {
            "sums/accuracy": [1.0, None, -1.0, None, None],
            "sums/format": [1.0, None, 0.0, None, None],
            "talk/total": [None, 4.0, None, 8.0, None],
            "words/total": [None, None, None, None, 1.0],
        }
        assert self.scores.counts["talk/errors"] == 2
        assert self.scores.counts["sums/accuracy/timeouts"] == 0
        assert self.scores.columns["extracted"] == [None, "four", None, "fourteen", None]
        assert self.scores.columns["accuracy/extracted"][2] is not None

    @pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [1, 0], [2]])
    def test_order_and_company_do_not_matter(self, order: list[int]) -> None:
        scores = BySource({"sums": MATH, "talk": lengths, "words": Format()})(
            [RESPONSES[row] for row in order]
        )
        assert scores.values == [self.scores.values[row] for row in order]

    def test_a_monitored_correctness_is_a_term_only(self) -> None:
        monitor = WeightedSum(
            {"format": {"reward": Format()}, "gold": {"reward": Accuracy(), "weight": 0.0}}
        )
        rows = [RESPONSES[0], response("words", "<answer>2</answer>", "2")]
        scores = BySource({"sums": MATH, "words": monitor})(rows)
        assert (scores.correct, scores.monitored) == ([True, None], False)
        assert scores.terms["words/gold"] == [None, 1.0]
        alone = BySource({"words": monitor})(rows[1:])
        assert (alone.correct, alone.monitored) == ([None], False)

    def test_rewards_by_token(self) -> None:
        rows = [response("talk", "abc"), response("steps", "x"), response("talk", "", tokens=())]
        reward = BySource({"talk": lengths, "steps": Steps()})
        scores = as_scores(reward(rows), 3, "by_source")
        assert scores.tokens == [[None, None, 3.0], [1.0, 2.0, 3.0], []]
        assert reward(rows[:1]).tokens == [[None, None, 3.0]], (
            "a rank may have responses of one source only"
        )

    def test_rewards_by_step_and_by_response_apart(self) -> None:
        both = WeightedSum(
            {"steps": {"reward": Steps()}, "lengths": {"reward": lengths, "weight": 0.5}}
        )
        reward = BySource({"talk": lengths, "steps": Steps(), "both": both})
        rows = [response("talk", "abc"), response("steps", "x"), response("both", "ab")]
        scores = reward(rows)
        assert scores.tokens == [[None, None, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 4.0]]
        assert scores.step_tokens == [[None, None, None], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
        assert scores.outcomes == [3.0, None, 1.0]
        assert reward.needs.gives_outcomes
        assert reward(rows[:1]).outcomes == [3.0], "a rank may have responses of one source only"
        assert not BySource({"steps": Steps()}).needs.gives_outcomes
        assert BySource({"steps": Steps()})(rows[1:2]).outcomes is None


class TestTerms:
    def test_keep_their_weights(self) -> None:
        both = {
            "lengths": {"reward": lengths},
            "even": {"reward": lambda rows: [0.0] * len(rows), "weight": 0.1},
        }
        reward = BySource({"a": WeightedSum(both), "b": lengths})
        scores = reward([response("a", "x"), response("b", "y")])
        assert scores.weights == {"a/lengths": 1.0, "a/even": 0.1, "b/total": 1.0}
        assert reward([response("a", "x")]).terms.keys() >= scores.weights.keys()
        assert scores.terms["b/total"] == [None, 1.0]
        assert scores.terms["a/lengths"][1] is None

    def test_gold_is_one_term_over_the_sources(self) -> None:
        gold = {"lengths": {"reward": lengths}, "gold": {"reward": lengths, "weight": 0}}
        scores = BySource({"a": WeightedSum(gold), "b": lengths})(
            [response("a", "x"), response("b", "y")]
        )
        assert scores.terms["gold"] == [1.0, None]


def test_needs_are_those_of_any() -> None:
    reward = BySource({"sums": MATH, "steps": Steps()})
    assert (reward.needs.answer, reward.needs.gives_steps, reward.needs.group) == (
        True,
        True,
        False,
    )
    assert not BySource({"words": Format()}).needs.answer
    assert reward.for_prompt(RESPONSES[0].prompt) is MATH


class TestErrors:
    @pytest.mark.parametrize(
        ("rewards", "message"),
        [
            ({}, r"reward=by_source needs rewards: type \+reward@reward.rewards.NAME=OPTION"),
            ({"a": 1}, r"reward.rewards.a is not a reward"),
        ],
    )
    def test_of_the_settings(self, rewards: Any, message: str) -> None:
        with pytest.raises(UserError, match=message):
            BySource(rewards)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (None, "prompt None/x has none: type data=mixture, or data.source=COLUMN"),
            (
                "sum",
                r"no reward for the source 'sum' of prompt sum/x, only for sums: type "
                r"\+reward@reward.rewards.sum=OPTION",
            ),
        ],
    )
    def test_of_a_prompt(self, source: str | None, message: str) -> None:
        with pytest.raises(UserError, match=message):
            BySource({"sums": MATH})([response(source, "x")])
