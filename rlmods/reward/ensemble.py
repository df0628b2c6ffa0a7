"""Mean, minimum or median of several rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal, get_args

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward.weighted_sum import WeightedSum
from rlmods.types import Response, Scores

How = Literal["mean", "min", "median"]

_REDUCTIONS: Mapping[How, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "min": min,
    "median": median,
}


@dataclass(frozen=True)
class Ensemble:
    """Mean, minimum or median of the rewards' scores of each response; the minimum is robust to a
    single reward that scores too high (arXiv:2310.02743). Rewards that abstain (None) are skipped;
    if all abstain, the ensemble abstains.

    Each reward's scores are in `Scores.terms`, its counts and columns are named `<reward>/<name>`,
    and correctness comes from the first reward that reports it, as in `WeightedSum`. The result is
    one number per response: per-token rewards are dropped. Rewards are added in YAML or from the
    command line:

        reward=ensemble +reward@reward.rewards.format=format
        +reward@reward.rewards.accuracy=accuracy

    Raises: UserError for no rewards, one that cannot be called, or an unknown `how`; the errors of
    `WeightedSum` if a reward fails."""

    rewards: Mapping[str, Callable[[Sequence[Response]], Any]]
    """Rewards by name. In YAML, `_convert_: all` keeps Hydra from converting the rewards, which are
    dataclasses, to configs."""
    how: How = "mean"
    """mean, min or median."""

    def __post_init__(self) -> None:
        if not self.rewards:
            raise UserError(
                "Ensemble: no rewards: type +reward@reward.rewards.NAME=OPTION for each"
            )
        for name, reward in self.rewards.items():
            if not callable(reward):
                raise UserError(
                    f"Ensemble: rewards.{name} cannot be called: type "
                    f"+reward@reward.rewards.{name}=OPTION"
                )
        if self.how not in get_args(How):
            raise UserError(
                f"Ensemble: how={self.how!r} must be one of {', '.join(get_args(How))}: type "
                "reward.how=mean"
            )

    @cached_property
    def members(self) -> WeightedSum:
        """Calls the rewards and collects their terms, counts and columns."""
        return WeightedSum({name: {"reward": reward} for name, reward in self.rewards.items()})

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds(answer=self.members.needs.answer)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores = self.members(responses)
        rows = zip(*(scores.terms[name] for name in self.rewards), strict=True)
        row_scores = [[score for score in row if score is not None] for row in rows]
        return replace(
            scores,
            values=[_REDUCTIONS[self.how](row) if row else None for row in row_scores],
            tokens=None,
        )
