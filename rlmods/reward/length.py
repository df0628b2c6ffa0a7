"""Rewards and penalties by the number of tokens."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward.accuracy import Accuracy
from rlmods.reward.scores import as_scores
from rlmods.reward.weighted_sum import Term
from rlmods.settings.bounds import Count, NonNegative, NonNegativeInt, bounded, check_bounds
from rlmods.types import Response, Scores


@dataclass(frozen=True)
@bounded("reward")
class Length:
    """Length penalty of RLHF: -coefficient * |y|, with |y| the number of sampled tokens, EOS
    included.

    Reward models tend to score longer responses higher, which policies learn to exploit first
    (arXiv:2310.03716)."""

    coefficient: NonNegative = 0.01
    """Penalty per token."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([-self.coefficient * response.num_sampled for response in responses])


def overlong_penalty(length: int, max_length: int, cache_length: int) -> float:
    """Soft overlong punishment (DAPO, arXiv:2503.14476, equation 13): 0 up to Lmax - Lcache, then
    ((Lmax - Lcache) - length) / Lcache up to Lmax, and -1 above."""
    threshold = max_length - cache_length
    if length <= threshold:
        return 0.0
    return (threshold - length) / cache_length if length <= max_length else -1.0


@dataclass(frozen=True)
@bounded("reward")
class Overlong:
    """`overlong_penalty` of the number of sampled tokens; of several turns, of those of the
    longest."""

    max_length: Count
    """Length in tokens with the full penalty of -1."""
    cache_length: NonNegativeInt | None = None
    """Tokens below `max_length` over which the penalty grows. None: a fifth of `max_length`, as in
    the paper (4,096 of 20,480)."""

    def __post_init__(self) -> None:
        fits = self.cache <= self.max_length
        check_bounds(
            self, "reward", {"cache_length": (fits, f"at most reward.max_length={self.max_length}")}
        )

    @property
    def cache(self) -> int:
        """`cache_length` or its default."""
        return self.max_length // 5 if self.cache_length is None else self.cache_length

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores(
            [
                overlong_penalty(response.longest_turn, self.max_length, self.cache)
                for response in responses
            ]
        )


def cosine(length: int, max_length: int, start: float, end: float) -> float:
    """Cosine schedule: end + (start - end) / 2 * (1 + cos(pi * length / max_length)): `start` at 0,
    `end` from `max_length` on."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * min(length, max_length) / max_length))


@dataclass(frozen=True)
@bounded("reward")
class Cosine:
    """`cosine` of the number of sampled tokens, EOS included (arXiv:2502.03373, section 4); of
    several turns, of those of the longest.

    It goes from `correct_short` to `correct_long` for a correct answer and from `wrong_short` to
    `wrong_long` for a wrong one. A truncated response gets `truncated`, correct or not.

    Correctness comes from another reward, whose counts, columns and terms are kept; if it is
    unknown, this reward abstains. Any reward that reports correctness can be used:

        reward=cosine +reward@reward.reward=code

    Raises:
        UserError: a reward that does not report correctness.
    """

    max_length: Count
    """Length in tokens from which the value is constant."""
    correct_short: float = 2.0
    correct_long: float = 1.0
    wrong_short: float = -10.0
    wrong_long: float = 0.0
    truncated: float = -10.0
    reward: Callable[[Sequence[Response]], Any] | None = None
    """Reward that reports correctness. null: `Accuracy`, i.e. whether the final answer equals the
    gold answer."""

    def __post_init__(self) -> None:
        if not callable(self.grader):
            raise UserError("Cosine: reward cannot be called: type +reward@reward.reward=accuracy")

    @cached_property
    def grader(self) -> Callable[[Sequence[Response]], Any]:
        return Accuracy() if self.reward is None else self.reward

    @property
    def members(self) -> list[Term]:
        return [Term("reward", self.grader)]

    @property
    def needs(self) -> RewardNeeds:
        needs = RewardNeeds.combine([self.grader])
        return replace(needs, gives_steps=False, gives_outcomes=True, gives_tokens=False)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        graded = as_scores(self.grader(responses), len(responses), "cosine")
        if graded.correct is None:
            raise UserError(
                "Cosine: its reward does not report correctness: type "
                "+reward@reward.reward=accuracy"
            )
        values = [
            self._value(response, correct)
            for response, correct in zip(responses, graded.correct, strict=True)
        ]
        return replace(graded, values=values, monitored=False, tokens=None)

    def _value(self, response: Response, correct: bool | None) -> float | None:
        if correct is None:
            return None
        if response.finish == "length":
            return self.truncated
        length = response.longest_turn
        if correct:
            return cosine(length, self.max_length, self.correct_short, self.correct_long)
        return cosine(length, self.max_length, self.wrong_short, self.wrong_long)
