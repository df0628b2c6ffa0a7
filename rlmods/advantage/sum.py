"""Sum of advantage estimators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds, needs_of
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask

ADD = "+advantage@advantage.terms.NAME.estimator=OPTION"


@dataclass(frozen=True)
class CreditTerm:
    """An estimator, the reward that it reads, and its weight in a sum."""

    name: str
    """Name of the term."""
    estimator: Any
    """Part of the group `advantage`."""
    weight: float = 1.0
    """Factor of its advantages."""
    reward: str | None = None
    """Name of the term of the reward that it reads; None: the total reward."""

    @property
    def needs(self) -> AdvantageNeeds:
        return needs_of(self.estimator, AdvantageNeeds)


@dataclass(frozen=True)
class Sum:
    """Weighted sum of estimators: A = sum_k w_k A_k. Each estimator normalises its own advantages,
    over its group or over the rows that an iteration trains on, before they are weighted and added.

    An estimator reads the total reward, or one term of it that you name, before the term's weight:

        advantage=sum
        +advantage@advantage.terms.outcome.estimator=group_norm
        +advantage@advantage.terms.turns.estimator=turn_norm
        +advantage.terms.outcome.reward=accuracy +advantage.terms.turns.weight=0.5

    A term gives 0 to a response on which its reward abstains, and leaves the response out of its
    statistics. A KL in the reward counts once, whatever the weights. A reward term of weight 0
    counts in no total, but a term of the sum may read it. One term of weight 1 is the estimator
    alone, bit for bit.

    Raises: UserError for terms of another form, or for terms that cannot share a critic."""

    terms: Mapping[str, Mapping[str, Any]]
    """By name: `estimator`, a part of the group `advantage`; `weight`, 1 by default; `reward`, the
    name of the term of the reward that it reads, by default the total reward. In YAML, `_convert_:
    all` keeps Hydra from treating the estimators, which are dataclasses, as configuration."""

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError(f"advantage=sum needs terms: type {ADD} for each")
        for name, term in self.terms.items():
            _check_term(name, term)
        if not any(part.weight for part in self.parts):
            name = self.parts[0].name
            raise UserError(
                f"advantage=sum: every weight is 0: type advantage.terms.{name}.weight=1"
            )
        of_critic = [part.name for part in self.parts if part.needs.values or part.needs.greedy]
        if len(of_critic) > 1:
            raise UserError(
                f"advantage=sum: {' and '.join(of_critic)} would each read the values of a critic "
                f"or of greedy responses: type ~advantage.terms.{of_critic[-1]}"
            )

    @cached_property
    def parts(self) -> tuple[CreditTerm, ...]:
        """The terms as records."""
        parts = []
        for name, term in self.terms.items():
            weight = float(term.get("weight", 1.0))
            parts.append(CreditTerm(name, term["estimator"], weight, term.get("reward")))
        return tuple(parts)

    @property
    def needs(self) -> AdvantageNeeds:
        needs = AdvantageNeeds.combine([part.estimator for part in self.parts])
        reads_terms = any(part.reward is not None for part in self.parts)
        # the loop places the rewards of each term from the column where turns begin
        return replace(needs, turns=True, terms=needs.terms or reads_terms)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
        **arguments: Any,
    ) -> Credit:
        """Return the sum for estimators that all read `rewards`. Training calls each estimator with
        its own rewards (`rlmods.training.credit`).

        Args:
            arguments: further arguments by estimator, as in `turns={"turn": turn}`.
        """
        columns = []
        returns = None
        for part in self.parts:
            options = arguments.get(part.name, {})
            credit = part.estimator(rewards, mask, group, values, **options)
            columns.append(credit.advantages)
            returns = credit.returns if returns is None else returns
        return Credit(self.total(columns), returns)

    def total(self, columns: Sequence[TokenFloats]) -> TokenFloats:
        """Return the weighted sum of the terms' advantages, where NaN counts as 0."""
        first, *others = self.parts
        total = first.weight * torch.where(columns[0].isnan(), 0.0, columns[0])
        for part, column in zip(others, columns[1:], strict=True):
            total = total + part.weight * torch.where(column.isnan(), 0.0, column)
        return total


def _check_term(name: str, term: Any) -> None:
    """Raise UserError for a term of another form."""
    is_term = isinstance(term, Mapping) and set(term) <= {"estimator", "weight", "reward"}
    if not is_term or not callable(term.get("estimator")):
        raise UserError(
            f"advantage.terms.{name} must be "
            "{estimator: ADVANTAGE, weight: NUMBER, reward: NAME}: "
            f"type {ADD.replace('NAME', name)}"
        )
    if isinstance(term["estimator"], Sum):
        raise UserError(
            f"advantage.terms.{name}.estimator is a sum itself: add its terms to advantage.terms"
        )
    weight = term.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or weight - weight != 0:
        raise UserError(f"advantage.terms.{name}.weight={weight}: must be a finite number")
