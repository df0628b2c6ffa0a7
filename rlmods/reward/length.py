"""A price for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.types import Response, Scores, UserError


@dataclass(frozen=True)
class Length:
    """-coefficient * |y|, |y| the number of sampled tokens, EOS included: the length penalty of RLHF. Raises UserError for a negative one.

    Reward models tend to pay for length, and a policy learns that first (arXiv:2310.03716).
    """

    coefficient: float = 0.01
    """Reward taken off for each token; 0 or more."""

    def __post_init__(self) -> None:
        if not self.coefficient >= 0:
            raise UserError(f"Length: coefficient={self.coefficient} would pay for length: type a positive one")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([-self.coefficient * len(response.tokens) for response in responses])
