"""Judge that compares the scores of a trained reward model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from rlmods import reward
from rlmods.errors import UserError
from rlmods.judge.rule import Pair, compare_scores
from rlmods.needs import JudgeNeeds
from rlmods.protocols import Candidate
from rlmods.settings.bounds import NonNegative, bounded
from rlmods.types import Prompt


@dataclass(frozen=True)
@bounded("judge")
class Neural:
    """Judge that prefers the response with the higher reward model score.

    Responses are encoded with the reward model's own tokenizer; a truncated one has no end-of-text
    token. The model is loaded at the first comparison.

    Raises: UserError if there is no such model or `tie` is negative; at a comparison, for a text
    that exceeds the model's context."""

    model: str | Sequence[str] | None = None
    """Run of `algo=reward_model`, directory or hub name; or a list of them, whose mean score is
    used."""
    tie: NonNegative = 0.0
    """Largest difference of scores that is a tie."""

    needs: ClassVar[JudgeNeeds] = JudgeNeeds(responses=True)

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("judge=neural needs a reward model: type judge.model=RUN_OR_DIRECTORY")
        self.scorer.check("neural")

    @cached_property
    def scorer(self) -> reward.Neural:
        return reward.Neural(self.model)

    def __call__(self, prompt: Prompt, first: Candidate, second: Candidate) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return one verdict per pair. Each response is scored once, in batches."""
        return compare_scores(pairs, self.scorer, self.tie, Counter())
