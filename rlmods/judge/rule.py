"""Judge that compares the scores of a reward function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.judge.scoring import Pair, check_tie, compare_scores
from rlmods.needs import JudgeNeeds, RewardNeeds, needs_of
from rlmods.protocols import Candidate
from rlmods.reward import Accuracy
from rlmods.types import Prompt, Response


@dataclass(frozen=True)
class Rule:
    """Judge that prefers the response with the higher reward; no verdict if the reward abstains on
    either. It takes any reward:

        +reward@judge.reward=math

    Responses that come from a file have a text but no tokens: terms that count tokens, such as an
    overlong penalty, are 0 for them.

    Raises: UserError if `reward` is not callable or `tie` is negative.
    """

    reward: Callable[[Sequence[Response]], Any] | None = None
    """Reward to compare by. null: `Accuracy`, i.e. whether the final answer equals the gold
    answer."""
    tie: float = 0.0
    """Largest difference of rewards that is a tie."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """Running totals of the reward's counts: `timeouts` and `errors` of answers that could not be
    graded."""

    def __post_init__(self) -> None:
        if not callable(self.scorer):
            raise UserError("judge.reward cannot be called: type +reward@judge.reward=accuracy")
        check_tie(self.tie)

    @cached_property
    def scorer(self) -> Callable[[Sequence[Response]], Any]:
        return Accuracy() if self.reward is None else self.reward

    @property
    def needs(self) -> JudgeNeeds:
        return JudgeNeeds(answer=needs_of(self.scorer, RewardNeeds).answer, responses=True)

    def __call__(self, prompt: Prompt, first: Candidate, second: Candidate) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return one verdict per pair. Each response is scored once, all in one call of the
        reward."""
        return compare_scores(pairs, self.scorer, self.tie, self.counts)
