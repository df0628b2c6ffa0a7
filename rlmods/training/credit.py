"""Credit assignment: the advantages of tokens from the scores of responses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlmods.advantage.sum import CreditTerm, Sum
from rlmods.distributed.collectives import Ranks
from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds, needs_of
from rlmods.ops import differs_by_token, rewards_to_go
from rlmods.protocols import Advantage, BatchAdvantage
from rlmods.training.collate import token_rewards
from rlmods.training.metrics import correctness_or_reward
from rlmods.training.parts import check_finite, check_returned, field_of
from rlmods.types import Experience, Scores


@dataclass(frozen=True)
class CreditAssignment:
    """Calls an advantage estimator with the rewards and the arguments that it declares
    (`rlmods.needs.AdvantageNeeds`), or each estimator of advantage=sum."""

    advantage: Advantage
    """Part of the group `advantage`."""

    @cached_property
    def needs(self) -> AdvantageNeeds:
        """The declarations of the estimator, or of all terms of a sum."""
        return needs_of(self.advantage, AdvantageNeeds)

    @property
    def terms(self) -> tuple[CreditTerm, ...]:
        """The estimators; none if the part is not a sum."""
        return self.advantage.parts if isinstance(self.advantage, Sum) else ()

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the terms by name."""
        return {term.name: term.weight for term in self.terms}

    def rewards(self, scores: Scores, scaled: Sequence[float | None]) -> Scores:
        """Return the scores with the rewards that the estimator reads, where `scaled` values are
        the totals. For a sum, these are the totals."""
        total = replace(scores, values=scaled)
        if self.terms:
            return total
        return rewards_for(self.needs, scores if self.needs.correctness else total)

    def estimate(
        self, batch: Experience, scores: Scores, penalty: Tensor, *, monte_carlo: bool = False
    ) -> Experience:
        """Add advantages, before a normalisation over the batch, and returns. With `monte_carlo`
        these are the discounted rewards-to-go: the returns of lambda 1, which no critic biases.

        `penalty` [N, T], the weighted KL in the reward, is subtracted from `rewards`. An estimator
        that divides by a statistic of the rewards gets them without it; the penalties of a token
        and all later ones are then subtracted from the token's advantage. In a sum, whose terms
        each subtract a part, it counts once whatever their weights."""
        if self.terms:
            return self._estimate_terms(batch, scores, penalty, monte_carlo)
        if not self.needs.normalizes_rewards:
            batch = replace(batch, rewards=batch.rewards - penalty)
        part: Any = self.advantage
        estimate = part.estimate if isinstance(part, BatchAdvantage) else part
        options = _options(self.needs, batch, scores)
        credit = estimate(batch.rewards, batch.mask, batch.group, batch.values, **options)
        shape = batch.mask.shape
        advantages: Any = field_of(part, "advantage", "advantages", credit)
        check_returned(part, "advantage", "advantages", advantages, shape)
        known = batch.rewards if batch.values is None else batch.rewards + batch.values
        if known.isfinite().all():  # else networks are at fault, and the step is skipped
            check_finite(part, "advantage", "advantages", advantages, batch.mask)
        returns: Any = field_of(part, "advantage", "returns", credit)
        if returns is not None:
            check_returned(part, "advantage", "returns", returns, shape)
            if monte_carlo:
                returns = rewards_to_go(batch.rewards, batch.mask, self.needs.discount)
        if self.needs.normalizes_rewards:
            advantages = advantages - rewards_to_go(penalty, batch.mask)
        return replace(batch, advantages=advantages, returns=returns)

    def _estimate_terms(
        self, batch: Experience, scores: Scores, penalty: Tensor, monte_carlo: bool
    ) -> Experience:
        """Estimate the advantages of each term with the rewards that it reads, and their sum."""
        columns = []
        returns = None
        for term, share in zip(self.terms, penalty_shares(self.terms), strict=True):
            read = term_scores(term, scores)
            rows = batch if read is None else with_rewards(batch, read)
            rows = CreditAssignment(term.estimator).estimate(
                rows, read or scores, share * penalty, monte_carlo=monte_carlo
            )
            is_unscored = batch.mask.any(1) & ~rows.mask.any(1)
            columns.append(torch.where(is_unscored[:, None], torch.nan, rows.advantages))
            returns = rows.returns if returns is None else returns
        batch = replace(batch, returns=returns, turn=None, state=None)
        return self._with_terms(batch, columns)

    def normalize(self, batch: Experience) -> Experience:
        """Normalise the advantages over the rows that an iteration trains on, on all ranks: of each
        estimator that does so."""
        if batch.term_advantages is None:
            if isinstance(self.advantage, BatchAdvantage):
                advantages = self.advantage.normalize(batch.advantages, batch.mask)
                batch = replace(batch, advantages=advantages)
            return batch
        columns = []
        for term, column in zip(self.terms, batch.term_advantages.unbind(-1), strict=True):
            mask = batch.mask & ~column.isnan()
            rows = replace(batch, mask=mask, advantages=column, term_advantages=None)
            columns.append(CreditAssignment(term.estimator).normalize(rows).advantages)
        return self._with_terms(batch, columns)

    def _with_terms(self, batch: Experience, columns: Sequence[Tensor]) -> Experience:
        assert isinstance(self.advantage, Sum)
        advantages = self.advantage.total(columns)
        return replace(batch, advantages=advantages, term_advantages=torch.stack(list(columns), -1))

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


def penalty_shares(terms: Sequence[CreditTerm]) -> list[float]:
    """Return the share s_k of the penalty that each term subtracts from its rewards: sign(w_k) /
    sum_j |w_j|, so that sum_k w_k s_k is 1 and the penalty counts once."""
    total = sum(abs(term.weight) for term in terms)
    return [math.copysign(1 / total, term.weight) if term.weight else 0.0 for term in terms]


def rewards_for(needs: AdvantageNeeds, scores: Scores) -> Scores:
    """Return the scores with the rewards that an estimator with these needs reads: correctness, the
    rewards by step without outcomes, or all."""
    if needs.correctness:
        values = [None if math.isnan(x) else x for x in correctness_or_reward(scores).tolist()]
        scores = replace(scores, values=values, tokens=None)
    if needs.outcomes and scores.step_tokens is not None:
        scores = replace(scores, tokens=scores.step_tokens)
    return scores


def term_scores(term: CreditTerm, scores: Scores) -> Scores | None:
    """Return the rewards that a term of a sum reads; None for the total rewards of the batch."""
    if term.reward is not None:
        return rewards_for(term.needs, scores.members[term.reward])
    reads_total = not term.needs.correctness and not term.needs.outcomes
    return None if reads_total else rewards_for(term.needs, scores)


def with_rewards(batch: Experience, scores: Scores) -> Experience:
    """Return the batch with other rewards, and an empty mask on the responses that they leave
    unscored."""
    assert batch.turn is not None
    starts = (batch.turn >= 0).long().argmax(1).tolist()
    device = batch.mask.device
    scored = torch.tensor([value is not None for value in scores.values], device=device)
    mask = batch.mask & scored[:, None]
    rewards, steps = token_rewards(scores, mask.cpu(), starts)
    return replace(
        batch,
        mask=mask,
        rewards=rewards.to(device),
        steps=None if steps is None else steps.to(device),
    )


def _options(needs: AdvantageNeeds, batch: Experience, scores: Scores) -> dict[str, Tensor]:
    """Return the further arguments that an estimator with these needs gets.

    Raises:
        UserError: it needs rewards by step, and there are none.
    """
    options: dict[str, Tensor] = {}
    if needs.steps:
        if batch.steps is None:
            raise UserError(
                "this advantage needs a reward for each step, but the reward returns one "
                "per response: type reward=process"
            )
        options["steps"] = batch.steps
    if needs.outcomes:
        options["outcomes"] = nan_for_none(scores.outcomes or [None] * len(scores))
    if needs.teacher:
        options["teacher_log_ratio"] = teacher_log_ratio(batch)
    if needs.turns and batch.turn is not None and batch.state is not None:
        options |= {"turn": batch.turn, "state": batch.state}
    if needs.branches and batch.origin is not None:
        options["origin"] = batch.origin
    if needs.terms:
        options["terms"], options["weights"] = reward_terms(scores)
    return {name: x.to(batch.rewards.device) for name, x in options.items()}


def teacher_log_ratio(batch: Experience) -> Tensor:
    """Return log p_T - log pi_old [N, T] of the tokens that the teacher has scored; 0 elsewhere.

    Raises:
        UserError: there is no teacher.
    """
    if batch.teacher_logprobs is None:
        raise UserError(
            "these responses were not scored by a teacher: train with advantage=teacher"
        )
    is_scored = batch.mask & ~batch.teacher_logprobs.isnan()
    return torch.where(is_scored, batch.teacher_logprobs - batch.old_logprobs, 0.0)


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
