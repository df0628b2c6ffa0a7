"""Rewards from a judge: of comparisons among the responses to one prompt, and of ratings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import JudgeNeeds, RewardNeeds, needs_of
from rlmods.protocols import compare, counts_of
from rlmods.types import Prompt, Response, Scores

Key = tuple[str, str, str]
"""Prompt id, text and finish of a response."""


@dataclass(frozen=True)
class Preference:
    """Win rate of a response against the other responses to its prompt, a tie counting half:
    (wins + ties / 2) / verdicts, from 0 to 1, with mean 1/2 over a prompt's responses. A prompt
    that occurs in two passes over the data has two groups.

    The reward compares responses within a group, so it needs no scale that is comparable across
    prompts, as in reinforcement learning from AI feedback (arXiv 2309.00267). Each pair of
    different responses is judged once; equal ones are a tie. A response without any verdict
    abstains; pairs without a verdict are counted as `without_verdict`, next to the judge's own
    counts.

    Raises: UserError without a judge.
    """

    judge: Any = None
    """Judge that compares two responses: +judge@reward.judge=llm"""

    def __post_init__(self) -> None:
        if not callable(self.judge):
            raise UserError(
                "reward=preference needs a judge: type +judge@reward.judge=llm, or =neural, "
                "or =rule"
            )

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds(group=True, answer=needs_of(self.judge, JudgeNeeds).answer)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        counts_before = counts_of(self.judge)
        groups: dict[tuple[str, int], list[int]] = {}
        for row, response in enumerate(responses):
            occurrence = (response.prompt.id, response.prompt.time)
            groups.setdefault(occurrence, []).append(row)
        keys = [(response.prompt.id, response.text, response.finish) for response in responses]
        pairs: dict[tuple[Key, Key], tuple[Prompt, Response, Response]] = {}
        for rows in groups.values():
            for i, j in combinations(rows, 2):
                if keys[i] != keys[j] and (keys[j], keys[i]) not in pairs:
                    question = (responses[i].prompt, responses[i], responses[j])
                    pairs.setdefault((keys[i], keys[j]), question)
        verdicts = dict(zip(pairs, compare(self.judge, list(pairs.values())), strict=True))
        counts = counts_of(self.judge)
        counts.subtract(counts_before)
        counts["without_verdict"] = list(verdicts.values()).count(None)
        for (first, second), verdict in list(verdicts.items()):
            verdicts[second, first] = None if verdict is None else 1 - verdict
        values: list[float | None] = [None] * len(responses)
        for rows in groups.values():
            for row in rows:
                others = [other for other in rows if other != row]
                found = [verdicts.get((keys[row], keys[other]), 0.5) for other in others]
                points = [verdict for verdict in found if verdict is not None]
                values[row] = sum(points) / len(points) if points else None
        return Scores(values, counts=counts)


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
