"""How good a language model finds a response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.types import Response, Scores, UserError


@dataclass(frozen=True)
class Rating:
    """The rating, 0 to 1, that a language model gives to a response by itself ("LLM as a judge", arXiv 2306.05685, single answer grading).

    Cheaper than `Preference`, which compares, and on a scale that drifts with the model. The same response to the same prompt is asked for
    once. One without a rating abstains; what the judge counts is logged: `requests`, `retries`, `without_verdict`, `cached`.

    Raises: UserError without a judge that rates, or for a template that does not show the response.
    """

    judge: Any = None
    """What rates: +judge@reward.judge=llm"""
    template: str | None = None
    """What is asked, with {prompt}, {response} and, if wanted, {answer}; the reply is to end on a whole number from 0 to 10.
    null: `rlmods.judge.question.RATING`."""

    def __post_init__(self) -> None:
        if not hasattr(self.judge, "rate"):
            raise UserError("reward=rating needs a language model: type +judge@reward.judge=llm")
        self._names()

    @property
    def needs_answer(self) -> bool:
        """Whether it is told the gold answer."""
        return "answer" in self._names()

    def _names(self) -> set[str]:
        from rlmods.judge.question import RATED, RATING, names  # judges use rewards

        return names(self.template or RATING, RATED, ("response",))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        before = Counter(self.judge.counts)
        rows = [(response.prompt, response.text) for response in responses]
        values = self.judge.rate(rows) if self.template is None else self.judge.rate(rows, self.template)
        return Scores(values, counts={event: count - before[event] for event, count in self.judge.counts.items()})
