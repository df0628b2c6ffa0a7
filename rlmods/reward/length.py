"""Penalty per token."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.errors import UserError
from rlmods.types import Response, Scores


@dataclass(frozen=True)
class Length:
    """Length penalty of RLHF: -coefficient * |y|, with |y| the number of sampled tokens, EOS
    included.

    Reward models tend to score longer responses higher, which policies learn to exploit first
    (arXiv:2310.03716).

    Raises: UserError for a negative coefficient.
    """

    coefficient: float = 0.01
    """Penalty per token; 0 or more."""

    def __post_init__(self) -> None:
        if not self.coefficient >= 0:
            raise UserError(
                f"Length: coefficient={self.coefficient} would reward length: type 0 or a "
                "positive number"
            )

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([-self.coefficient * response.num_sampled for response in responses])
