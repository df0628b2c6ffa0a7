"""A rollout whose log-probabilities are not those of training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlmods.rollout import Local
from rlmods.types import Prompt, Response


@dataclass
class Shifted(Local):
    """Samples as `Local`, and reports log-probabilities that are too low for even token ids and too
    high for odd ones."""

    even: float = 1.0
    """Log of the importance ratio of even tokens."""
    odd: float = -1.0
    """The same of odd tokens."""

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        responses = super().generate(prompts, samples=samples, iteration=iteration)
        logprobs = [
            [x - self.shift(t) for t, x in zip(r.tokens, r.behavior_logprobs, strict=True)]
            for r in responses
        ]
        return [
            replace(r, behavior_logprobs=row) for r, row in zip(responses, logprobs, strict=True)
        ]

    def shift(self, token: int) -> float:
        return self.odd if token % 2 else self.even
