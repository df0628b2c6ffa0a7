"""Mean, minimum or median of several rewards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward.weighted_sum import Term, WeightedSum, check_rewards, leaves
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

    Raises: UserError for no rewards, or one that gives rewards by step; the errors of `WeightedSum`
    if a reward fails."""

    rewards: Mapping[str, Callable[[Sequence[Response]], Any]]
    """Rewards by name. In YAML, `_convert_: all` keeps Hydra from converting the rewards, which are
    dataclasses, to configs."""
    how: How = "mean"
    """mean, min or median."""

    def __post_init__(self) -> None:
        check_rewards("ensemble", self.rewards)
        if not RewardNeeds.combine(self.rewards.values()).gives_steps:
            return
        for term in leaves(Term("reward", self)):
            if term.needs.gives_steps:
                raise UserError(
                    f"Ensemble: {term.path} gives one reward per step, and their sum pays for the "
                    f"number of steps: type {term.path}.aggregate=min"
                )

    @property
    def members(self) -> list[Term]:
        return [Term(f"rewards.{name}", reward) for name, reward in self.rewards.items()]

    @property
    def needs(self) -> RewardNeeds:
        return replace(RewardNeeds.combine(self.rewards.values()), gives_tokens=False)

    @cached_property
    def _sum(self) -> WeightedSum:
        """Calls the rewards and collects their terms, counts and columns."""
        return WeightedSum({name: {"reward": reward} for name, reward in self.rewards.items()})

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores = self._sum(responses)
        reduce = _REDUCTIONS[self.how]
        values = []
        for row in range(len(responses)):
            given = [scores.terms[name][row] for name in self.rewards]
            known = [score for score in given if score is not None]
            values.append(reduce(known) if known else None)
        return replace(scores, values=values, tokens=None)
