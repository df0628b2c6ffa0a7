"""A reward that is wrong for a fraction of the responses, to study noise in grading."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward.accuracy import Accuracy
from rlmods.reward.scores import as_scores
from rlmods.reward.weighted_sum import Term
from rlmods.settings.bounds import Fraction, bounded
from rlmods.types import Response, Scores


@dataclass(frozen=True)
@bounded("reward")
class Flipped:
    """1 - r instead of the reward r of a `fraction` of the responses, chosen by a hash of `seed`,
    prompt and text: a grader that errs on some responses, on the same response always in the same
    way. Correctness, and so accuracy, stays what it is.

    Source: class-conditional label noise with equal rates (Natarajan et al., 2013).

        reward=flipped +reward@reward.reward=code

    Raises:
        UserError: a reward that gives rewards by step.
    """

    fraction: Fraction = 0.2
    """Fraction of responses with a flipped reward."""
    seed: int = 0
    """Seed of the choice; independent of the run's seed."""
    reward: Callable[[Sequence[Response]], Any] | None = None
    """Reward from 0 to 1. null: `Accuracy`."""

    def __post_init__(self) -> None:
        if not callable(self.grader):
            raise UserError("Flipped: reward cannot be called: type +reward@reward.reward=accuracy")
        if RewardNeeds.combine([self.grader]).gives_steps:
            raise UserError(
                "Flipped: its reward gives one number per step: type +reward@reward.reward=accuracy"
            )

    @cached_property
    def grader(self) -> Callable[[Sequence[Response]], Any]:
        return Accuracy() if self.reward is None else self.reward

    @property
    def members(self) -> list[Term]:
        return [Term("reward", self.grader)]

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds.combine([self.grader])

    def __call__(self, responses: Sequence[Response]) -> Scores:
        graded = as_scores(self.grader(responses), len(responses), "flipped")
        flips = [self._is_flipped(response) for response in responses]
        values = [
            1.0 - value if flip and value is not None else value
            for value, flip in zip(graded.values, flips, strict=True)
        ]
        columns = {**graded.columns, "flipped": flips}
        return replace(graded, values=values, monitored=True, columns=columns)

    def _is_flipped(self, response: Response) -> bool:
        key = f"{self.seed}\n{response.prompt.id}\n{response.text}"
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:7]) < self.fraction * 2**56
