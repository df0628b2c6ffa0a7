"""A soft punishment of length, for responses close to the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.types import Response, Scores, UserError


def overlong_penalty(length: int, max_length: int, cache_length: int) -> float:
    """0 up to Lmax - Lcache, then ((Lmax - Lcache) - length) / Lcache up to Lmax, and -1 above (DAPO, arXiv:2503.14476, equation 13)."""
    free = max_length - cache_length
    if length <= free:
        return 0.0
    return (free - length) / cache_length if length <= max_length else -1.0


@dataclass(frozen=True)
class Overlong:
    """`overlong_penalty` of the number of sampled tokens. Raises UserError for lengths that leave no room."""

    max_length: int
    """Tokens. A response of this length is punished in full."""
    cache_length: int | None = None
    """Tokens below `max_length` over which the punishment grows. None: a quarter of it."""

    def __post_init__(self) -> None:
        if not 0 <= self.cache <= self.max_length or self.max_length < 1:
            raise UserError(f"Overlong: cache_length={self.cache} does not lie between 0 and max_length={self.max_length}")

    @property
    def cache(self) -> int:
        """`cache_length`, or what it defaults to."""
        return self.max_length // 4 if self.cache_length is None else self.cache_length

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([overlong_penalty(len(response.tokens), self.max_length, self.cache) for response in responses])
