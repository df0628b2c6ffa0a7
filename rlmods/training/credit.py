"""Credit assignment: the advantages of tokens from the scores of responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlmods.distributed.collectives import Ranks
from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds, needs_of
from rlmods.ops import differs_by_token, rewards_to_go
from rlmods.protocols import Advantage, BatchAdvantage
from rlmods.training.metrics import correctness
from rlmods.training.returned import check_finite, check_returned, field_of
from rlmods.types import Experience, Scores


@dataclass(frozen=True)
class CreditAssignment:
    """Calls an advantage estimator with the rewards and the arguments that it declares
    (`rlmods.needs.AdvantageNeeds`)."""

    advantage: Advantage
    """Part of the group `advantage`."""

    @cached_property
    def needs(self) -> AdvantageNeeds:
        """The estimator's declarations."""
        return needs_of(self.advantage, AdvantageNeeds)

    def rewards(self, scores: Scores, scaled: Sequence[float | None]) -> Scores:
        """Return the scores with the rewards that the estimator reads: correctness, or the `scaled`
        values and the rewards by step."""
        if self.needs.correctness:
            values = [None if math.isnan(x) else x for x in correctness(scores).tolist()]
            rewards = replace(scores, values=values, tokens=None)
        else:
            rewards = replace(scores, values=scaled)
        if self.needs.outcomes and scores.step_tokens is not None:
            rewards = replace(rewards, tokens=scores.step_tokens)
        return rewards

    def estimate(self, batch: Experience, scores: Scores, penalty: Tensor) -> Experience:
        """Add advantages, before a normalisation over the batch, and returns.

        `penalty` [N, T], the weighted KL in the reward, is subtracted from `rewards`. An estimator
        that divides by a statistic of the rewards gets them without it; the penalties of a token
        and all later ones are then subtracted from the token's advantage."""
        if not self.needs.normalizes_rewards:
            batch = replace(batch, rewards=batch.rewards - penalty)
        advantage: Any = self.advantage
        estimate = advantage.estimate if isinstance(advantage, BatchAdvantage) else advantage
        credit = estimate(
            batch.rewards, batch.mask, batch.group, batch.values, **self._options(batch, scores)
        )
        shape = batch.mask.shape
        advantages: Any = field_of(advantage, "advantage", "advantages", credit)
        check_returned(advantage, "advantage", "advantages", advantages, shape)
        known = batch.rewards if batch.values is None else batch.rewards + batch.values
        if known.isfinite().all():  # else networks are at fault, and the step is skipped
            check_finite(advantage, "advantage", "advantages", advantages, batch.mask)
        returns: Any = field_of(advantage, "advantage", "returns", credit)
        if returns is not None:
            check_returned(advantage, "advantage", "returns", returns, shape)
        if self.needs.normalizes_rewards:
            advantages = advantages - rewards_to_go(penalty, batch.mask)
        return replace(batch, advantages=advantages, returns=returns)

    def normalize(self, batch: Experience) -> Experience:
        """Normalise the advantages over the rows that an iteration trains on, on all ranks, if the
        estimator does so."""
        if not isinstance(self.advantage, BatchAdvantage):
            return batch
        return replace(batch, advantages=self.advantage.normalize(batch.advantages, batch.mask))

    def check(self, batch: Experience, level: str, ranks: Ranks) -> None:
        """Check that a ratio of this level gets one advantage per response if it has one value per
        response.

        Raises:
            UserError: the advantages of a response differ by token.
        """
        if level != "sequence":
            return
        if ranks.reduce(differs_by_token(batch.advantages, batch.mask).any(), "max"):
            raise UserError(
                "this ratio has one value per response and would average advantages of "
                f"{type(self.advantage).__name__} that differ by token: type ratio=sequence_token"
            )

    def _options(self, batch: Experience, scores: Scores) -> dict[str, Tensor]:
        """Return the further arguments that the estimator declares.

        Raises:
            UserError: it needs rewards by step, and there are none.
        """
        options: dict[str, Tensor] = {}
        if self.needs.steps:
            if batch.steps is None:
                raise UserError(
                    "this advantage needs a reward for each step, but the reward returns one "
                    "per response: type reward=process"
                )
            options["steps"] = batch.steps
        if self.needs.outcomes:
            options["outcomes"] = nan_for_none(scores.outcomes or [None] * len(scores))
        if self.needs.branches and batch.origin is not None:
            options["origin"] = batch.origin
        if self.needs.terms:
            options["terms"], options["weights"] = reward_terms(scores)
        return {name: x.to(batch.rewards.device) for name, x in options.items()}


def reward_terms(scores: Scores) -> tuple[Tensor, Tensor]:
    """Return the scores [N, K] of the K weighted terms before weighting (NaN: the term abstains),
    and their weights [K]. A reward without terms is one term of weight 1."""
    if not scores.weights:
        return nan_for_none(scores.values)[:, None], torch.ones(1)
    columns = [nan_for_none(scores.terms[name]) for name in scores.weights]
    return torch.stack(columns, 1), torch.tensor(list(scores.weights.values()))


def nan_for_none(values: Sequence[float | None]) -> Tensor:
    """Return the values [N] with NaN in place of None."""
    return torch.tensor([math.nan if x is None else x for x in values])
