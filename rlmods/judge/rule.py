"""A reward as a judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlmods.judge.scored import Pair, by_score, check_tie
from rlmods.reward import Accuracy
from rlmods.types import Prompt, Response, UserError


@dataclass(frozen=True)
class Rule:
    """The response with the higher reward is better; no verdict where the reward abstains on either. Any reward will do:

        +reward@judge.reward=math

    It is given texts: a term that counts tokens, such as an overlong penalty, sees none. Raises: UserError where `reward` cannot be called
    or `tie` is negative.
    """

    reward: Callable[[Sequence[Response]], Any] | None = None
    """What scores. null: whether the final answer is the gold one (`Accuracy`)."""
    tie: float = 0.0
    """Scores at most this far apart are a tie."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """What the reward counts, so far: `timeouts` and `errors` of answers that could not be graded."""

    def __post_init__(self) -> None:
        if not callable(self.scorer):
            raise UserError("judge.reward cannot be called: type +reward@judge.reward=accuracy")
        check_tie(self.tie)

    @cached_property
    def scorer(self) -> Callable[[Sequence[Response]], Any]:
        return Accuracy() if self.reward is None else self.reward

    @property
    def needs_answer(self) -> bool:
        """Whether it reads the gold answer."""
        return bool(getattr(self.scorer, "needs_answer", False))

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """A verdict a pair; every response is graded once, all in one call."""
        return by_score(pairs, self.scorer, self.tie, self.counts)
