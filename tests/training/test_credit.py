"""Credit assignment: an estimator gets the rewards and arguments that it declares, and a penalty is
subtracted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.advantage import Accept, BranchNorm, GroupMean, GroupNorm, Process, ReinforcePP, Tree
from rlmods.errors import UserError
from rlmods.training.credit import CreditAssignment
from rlmods.types import Experience, Scores
from tests.support.batches import Batch, batch
from tests.support.reference import dense, to_go

B = batch(9, 6, seed=3)
PENALTY = torch.where(B.mask, B.log_ratio.abs() + 0.1, 0.0)
SHAPED = Scores(
    [0.3, None, 2.0],
    correct=[True, None, None],
    tokens=[[0.3], [None], [2.0]],
    step_tokens=[[0.1], [None], [1.5]],
)
SCALED = [3.0, None, 20.0]


def rows(b: Batch, **columns: Tensor) -> Experience:
    length, none = (
        torch.full((len(b.mask),), b.mask.shape[1]),
        torch.full_like(b.rewards, torch.nan),
    )
    columns |= {
        "mask": b.mask,
        "rewards": b.rewards,
        "group": b.group,
        "advantages": none,
        "old_logprobs": none,
    }
    return Experience(
        tokens=b.mask.long(),
        on_policy=torch.zeros(len(b.mask), dtype=torch.bool),
        lengths=length,
        behavior_logprobs=none,
        policy_version=length,
        sampler_version=length,
        **columns,
    )


@pytest.mark.parametrize(
    ("advantage", "values", "tokens"),
    [
        (GroupNorm(), SCALED, SHAPED.tokens),
        (Accept(), [1.0, None, 2.0], None),
        (Process(), SCALED, SHAPED.tokens),
        (Process(outcome_weight=1.0), SCALED, SHAPED.step_tokens),
    ],
    ids=["totals", "correctness", "steps", "steps without outcomes"],
)
def test_rewards_are_those_that_the_estimator_reads(
    advantage: Any, values: Any, tokens: Any
) -> None:
    rewards = CreditAssignment(advantage).rewards(SHAPED, SCALED)
    assert (list(rewards.values), rewards.tokens) == (values, tokens)


def test_without_rewards_by_step_outcomes_change_nothing() -> None:
    assert (
        CreditAssignment(Process(outcome_weight=1.0)).rewards(Scores([0.5]), [0.5]).tokens is None
    )


def test_a_penalty_is_part_of_the_rewards() -> None:
    found = CreditAssignment(GroupMean()).estimate(rows(B), Scores([None] * 9), PENALTY)
    assert torch.equal(found.rewards, B.rewards - PENALTY)
    assert torch.equal(
        found.advantages, GroupMean()(B.rewards - PENALTY, B.mask, B.group).advantages
    )


def test_a_penalty_beside_normalised_rewards_is_subtracted_from_its_token_and_those_before() -> (
    None
):
    found = CreditAssignment(GroupNorm()).estimate(rows(B), Scores([None] * 9), PENALTY)
    assert torch.equal(found.rewards, B.rewards)
    without = GroupNorm()(B.rewards, B.mask, B.group).advantages
    torch.testing.assert_close(
        found.advantages, without - dense(to_go(PENALTY, B.mask), B.mask.shape)
    )


def test_advantages_are_normalised_later() -> None:
    credit = CreditAssignment(ReinforcePP())
    estimated = credit.estimate(rows(B), Scores([None] * 9), torch.zeros_like(PENALTY))
    half = estimated.select(torch.arange(5))
    assert torch.equal(
        credit.normalize(half).advantages,
        ReinforcePP()(B.rewards[:5], B.mask[:5], B.group[:5]).advantages,
    )
    assert not torch.equal(credit.normalize(half).advantages, half.advantages)


def test_steps_are_needed() -> None:
    with pytest.raises(UserError, match="type reward=process"):
        CreditAssignment(Process()).estimate(rows(B), Scores([None] * 9), torch.zeros_like(PENALTY))


@pytest.mark.parametrize("part", [BranchNorm(), Tree()])
def test_branches_reach_the_estimator(part: Any) -> None:
    scores, nothing = Scores([None] * 9), torch.zeros_like(PENALTY)
    origin = torch.where(torch.arange(6) < 2, 0, torch.arange(9)[:, None])
    found = CreditAssignment(part).estimate(rows(B, origin=origin), scores, nothing).advantages
    assert torch.equal(found, part(B.rewards, B.mask, B.group, None, origin).advantages)
    without = CreditAssignment(part).estimate(rows(B), scores, nothing).advantages
    assert torch.equal(without, part(B.rewards, B.mask, B.group).advantages)
    assert not torch.allclose(found, without)
