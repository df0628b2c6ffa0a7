"""Soft penalty for responses close to the length limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.settings.bounds import Count, NonNegativeInt, bounded, check_bounds
from rlmods.types import Response, Scores


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
