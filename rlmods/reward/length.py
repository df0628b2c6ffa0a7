"""Penalty per token."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.settings.bounds import NonNegative, bounded
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
