"""Reward from the rating of a language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.protocols import counts_of
from rlmods.types import Response, Scores


@dataclass(frozen=True)
class Rating:
    """Rating, 0 to 1, of each response by itself, from a language model ("LLM as a judge", arXiv
    2306.05685, single answer grading).

    Cheaper than `Preference`, which compares pairs, but its scale differs between models. Equal
    responses to the same prompt are rated once. A response without a rating abstains. The judge's
    counts are logged: `requests`, `retries`, `without_verdict`, `cached`.

    Raises: UserError without a judge that can rate, or for a template without the response.
    """

    judge: Any = None
    """Judge that rates: +judge@reward.judge=llm"""
    template: str | None = None
    """Prompt template, with {prompt}, {response} and, optionally, {answer}; the reply must end with
    a whole number from 0 to 10. null: `rlmods.judge.question.RATING_TEMPLATE`."""

    def __post_init__(self) -> None:
        if not hasattr(self.judge, "rate"):
            raise UserError("reward=rating needs a language model: type +judge@reward.judge=llm")
        self.needs  # noqa: B018 - fail now for a template without the response

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds(answer="answer" in self.judge.rating_fields(self.template))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        counts_before = counts_of(self.judge)
        values = self.judge.rate(responses, self.template)
        counts = counts_of(self.judge)
        counts.subtract(counts_before)
        return Scores(values, counts=counts)
