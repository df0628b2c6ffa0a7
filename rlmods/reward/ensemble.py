"""One score out of several rewards' scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal, get_args

from rlmods.reward.weighted_sum import WeightedSum
from rlmods.types import Response, Scores, UserError

How = Literal["mean", "min", "median"]

_HOW: Mapping[How, Callable[[Sequence[float]], float]] = {"mean": fmean, "min": min, "median": median}


@dataclass(frozen=True)
class Ensemble:
    """mean, min or median over the rewards' scores of one response; the min trusts none of them alone (arXiv:2310.02743). A reward that
    abstains (None) is left out; where all do, so does the ensemble.

    Each reward's scores are in `Scores.terms`, its counts and columns are kept as `<reward>/<name>`, and correctness comes from the first
    that knows, as in `WeightedSum`. It is one number a response: rewards by token are not kept. Rewards are added in YAML or from the
    command line:

        reward=ensemble +reward@reward.rewards.format=format +reward@reward.rewards.accuracy=accuracy

    Raises: UserError for no rewards, one that cannot be called, and an unknown `how`; and what `WeightedSum` does where a reward fails.
    """

    rewards: Mapping[str, Callable[[Sequence[Response]], Any]]
    """By name. In YAML `_convert_: all` keeps Hydra from taking them, which are dataclasses, for more configuration."""
    how: How = "mean"
    """mean, min or median."""

    def __post_init__(self) -> None:
        if not self.rewards:
            raise UserError("Ensemble: no rewards: type +reward@reward.rewards.NAME=OPTION for each")
        for name, reward in self.rewards.items():
            if not callable(reward):
                raise UserError(f"Ensemble: rewards.{name} cannot be called: type +reward@reward.rewards.{name}=OPTION")
        if self.how not in get_args(How):
            raise UserError(f"Ensemble: how={self.how!r} is none of {', '.join(get_args(How))}: type reward.how=mean")

    @cached_property
    def members(self) -> WeightedSum:
        """It asks the rewards, and keeps what they say apart."""
        return WeightedSum({name: {"reward": reward} for name, reward in self.rewards.items()})

    @property
    def needs_answer(self) -> bool:
        """Whether any reward reads the gold answer."""
        return self.members.needs_answer

    def __call__(self, responses: Sequence[Response]) -> Scores:
        asked = self.members(responses)
        rows = zip(*(asked.terms[name] for name in self.rewards), strict=True)
        known = [[score for score in row if score is not None] for row in rows]
        return replace(asked, values=[_HOW[self.how](row) if row else None for row in known], tokens=None)
