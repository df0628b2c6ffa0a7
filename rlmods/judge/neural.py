"""A trained reward model as a judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from rlmods import reward
from rlmods.judge.scored import Pair, by_score, check_tie
from rlmods.types import Prompt, UserError


@dataclass(frozen=True)
class Neural:
    """The response that a reward model scores higher is better. Each is read in the model's own tokens, as one that ended by itself.

    The model loads at the first question. Raises: UserError where there is none, or `tie` is negative; later, for a text that exceeds its
    context.
    """

    model: str | Sequence[str] | None = None
    """Run of `algo=reward_model`, directory or hub name; or a list of them, whose mean score counts."""
    tie: float = 0.0
    """Scores at most this far apart are a tie."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """What the reward counts, so far: `timeouts` and `errors` of answers that could not be graded."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("judge=neural needs a reward model: judge.model=RUN_OR_DIRECTORY")
        check_tie(self.tie)
        self.scorer.check("neural")

    @cached_property
    def scorer(self) -> reward.Neural:
        return reward.Neural(self.model)

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """A verdict a pair; every response is scored once, in batches."""
        return by_score(pairs, self.scorer, self.tie, self.counts)
