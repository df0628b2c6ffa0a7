"""Credit assignment: an estimator gets the rewards and arguments that it declares, and a penalty is
subtracted once."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.advantage import (
    Accept,
    BatchMean,
    BranchNorm,
    GroupMean,
    GroupNorm,
    Process,
    ReinforcePP,
    Sum,
    Tree,
    TurnNorm,
)
from rlmods.errors import UserError
from rlmods.training.collate import token_rewards
from rlmods.training.credit import CreditAssignment
from rlmods.types import Credit, Experience, Scores
from tests.support.batches import Batch, batch
from tests.support.reference import dense, to_go
from tests.support.turns import turns_of

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


def sum_of(*estimators: Any, **settings: Any) -> Sum:
    terms = {}
    for index, estimator in enumerate(estimators):
        terms[str(index)] = {"estimator": estimator} | settings
    return Sum(terms)


def turn_rows(b: Batch) -> Experience:
    """Rows whose first column is a prompt."""
    turn, state = turns_of(b, seed=2)
    turn[:, 0] = -1
    mask = b.mask.clone()
    mask[:, 0] = False
    return replace(rows(b, turn=turn, state=state), mask=mask)


@pytest.mark.parametrize("part", [GroupNorm(), GroupMean(), ReinforcePP(), TurnNorm(), BatchMean()])
def test_a_sum_of_one_term_is_the_term(part: Any) -> None:
    scores = Scores([0.5] * 9)
    alone = CreditAssignment(part)
    summed = CreditAssignment(sum_of(part))
    expected = alone.normalize(alone.estimate(turn_rows(B), scores, PENALTY))
    found = summed.normalize(summed.estimate(turn_rows(B), scores, PENALTY))
    assert expected.advantages.abs().max() > 0.1
    assert torch.equal(found.advantages, expected.advantages)


@pytest.mark.parametrize("weight", [0.5, 0.0, -2.0])
def test_a_penalty_counts_once_in_a_sum(weight: float) -> None:
    scores = Scores([0.5] * 9)
    terms = {
        "outcome": {"estimator": GroupNorm(), "weight": 2.0},
        "turns": {"estimator": TurnNorm(), "weight": weight},
    }
    credit = CreditAssignment(Sum(terms))
    batch_rows = turn_rows(B)
    penalty = torch.where(batch_rows.mask, PENALTY, 0.0)
    without = credit.estimate(batch_rows, scores, torch.zeros_like(penalty)).advantages
    found = credit.estimate(batch_rows, scores, penalty).advantages
    to_go_penalty = dense(to_go(penalty, batch_rows.mask), penalty.shape)
    assert to_go_penalty.abs().max() > 0.1
    torch.testing.assert_close(found, without - to_go_penalty)


def test_terms_are_normalised_apart() -> None:
    """Each term over the rows that are trained on, before they are added up."""
    scores = Scores([0.5] * 9)
    credit = CreditAssignment(
        Sum(
            {
                "a": {"estimator": ReinforcePP(), "weight": 2.0},
                "b": {"estimator": ReinforcePP(gamma=0.5), "weight": -0.5},
            }
        )
    )
    nothing = torch.zeros_like(PENALTY)
    half = credit.estimate(turn_rows(B), scores, nothing).select(torch.arange(5))
    expected = 0.0
    for weight, gamma in ((2.0, 1.0), (-0.5, 0.5)):
        alone = CreditAssignment(ReinforcePP(gamma=gamma))
        part = alone.estimate(turn_rows(B), scores, nothing).select(torch.arange(5))
        expected = expected + weight * alone.normalize(part).advantages
    found = credit.normalize(half)
    torch.testing.assert_close(found.advantages, expected)
    assert found.term_advantages is not None
    weighted = 2.0 * found.term_advantages[..., 0] - 0.5 * found.term_advantages[..., 1]
    torch.testing.assert_close(found.advantages, weighted)


def test_a_term_reads_its_own_reward() -> None:
    """`style` abstains on the third response, which has no part in its statistics; `correct` is by
    token, on the second and third token."""
    b = batch(4, 5, seed=1, holes=0.0)
    mask = torch.tensor([[False, True, True, True, True]] * 4)
    group = torch.zeros(4, dtype=torch.long)
    batch_rows = replace(
        rows(b, turn=torch.where(mask, 0, -1), state=torch.zeros(4, 5, dtype=torch.long)),
        mask=mask,
        group=group,
        rewards=torch.zeros(4, 5),
    )
    by_token = [[None, 1.0, 2.0, None], [None, 0.0, 0.0, None], [None] * 4, [None] * 4]
    members = {
        "style": Scores([1.0, 0.0, None, 0.5]),
        "correct": Scores([3.0, 0.0, 0.0, 0.0], tokens=by_token),
    }
    scores = Scores([0.0] * 4, members=members)
    part = Sum(
        {
            "style": {"estimator": GroupMean(), "reward": "style", "weight": 2.0},
            "correct": {"estimator": ReinforcePP(), "reward": "correct"},
        }
    )
    found = CreditAssignment(part).estimate(batch_rows, scores, torch.zeros(4, 5))
    style = torch.tensor([1.0, -1.0, 0.0, 0.0])[:, None] * mask
    to_go = torch.zeros(4, 5)
    to_go[0] = torch.tensor([0.0, 3.0, 3.0, 2.0, 0.0])
    torch.testing.assert_close(found.advantages, style + to_go)
    assert found.term_advantages is not None
    assert found.term_advantages[2, :, 0].isnan().all()
    normalised = CreditAssignment(part).normalize(found)
    assert normalised.advantages.isfinite().all()


def test_a_term_that_reads_correctness() -> None:
    b = batch(3, 4, seed=1, holes=0.0)
    mask = torch.tensor([[False, True, True, True]] * 3)
    batch_rows = replace(
        rows(b, turn=torch.where(mask, 0, -1), state=torch.zeros(3, 4, dtype=torch.long)),
        mask=mask,
        group=torch.zeros(3, dtype=torch.long),
    )
    scores = Scores([0.3, 0.1, 2.0], correct=[True, False, None])
    found = CreditAssignment(sum_of(Accept())).estimate(batch_rows, scores, torch.zeros(3, 4))
    alone = CreditAssignment(Accept())
    own = alone.rewards(scores, scores.values)
    rewards, _ = token_rewards(own, mask, [1, 1, 1])
    expected = Accept()(rewards, mask, batch_rows.group).advantages
    torch.testing.assert_close(found.advantages, expected)


def test_outcomes_are_unknown_where_the_reward_reports_none() -> None:
    b = batch(4, 5, seed=1)
    steps = b.mask & (torch.arange(5) % 2 == 0)
    part = Process(outcome_weight=1.0)
    found = CreditAssignment(part).estimate(
        rows(b, steps=steps), Scores([0.0] * 4), torch.zeros_like(b.rewards)
    )
    unknown = torch.full((4,), torch.nan)
    expected = part(b.rewards, b.mask, b.group, None, steps, unknown).advantages
    torch.testing.assert_close(found.advantages, expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_part_that_returns_no_number_is_named_unless_its_input_was_none(value: float) -> None:
    class Broken:
        def __call__(self, rewards: Tensor, mask: Tensor, *rest: Any) -> Credit:
            return Credit(torch.full_like(rewards, value))

    nothing = torch.zeros_like(PENALTY)
    with pytest.raises(UserError, match="Broken: advantages is NaN or infinite"):
        CreditAssignment(Broken()).estimate(rows(B), Scores([None] * 9), nothing)
    poisoned = replace(rows(B), rewards=torch.full_like(B.rewards, torch.nan))
    CreditAssignment(Broken()).estimate(poisoned, Scores([None] * 9), nothing)


def test_a_term_that_abstains_is_normalised_over_the_other_responses() -> None:
    b = batch(4, 5, seed=1, holes=0.0)
    mask = torch.tensor([[False, True, True, True, True]] * 4)
    own = replace(
        rows(b, turn=torch.where(mask, 0, -1), state=torch.zeros(4, 5, dtype=torch.long)),
        mask=mask,
        group=torch.tensor([0, 0, 1, 0]),
        rewards=torch.zeros(4, 5),
    )
    members = {"style": Scores([1.0, 0.0, None, 0.5]), "other": Scores([1.0, None, 0.0, 3.0])}
    scores = Scores([0.0] * 4, members=members)
    parts: dict[str, Any] = {"style": ReinforcePP(), "other": GroupMean()}
    terms = {}
    for name, part in parts.items():
        terms[name] = {"estimator": part, "reward": name}
    credit = CreditAssignment(Sum(terms))
    found = credit.normalize(credit.estimate(own, scores, torch.zeros(4, 5)))
    expected = torch.zeros(4, 5)
    for name, term in members.items():
        scored = torch.tensor([value is not None for value in term.values])
        rewards, _ = token_rewards(term, mask & scored[:, None], [1] * 4)
        alone = parts[name](rewards[scored], mask[scored], own.group[scored]).advantages
        expected[scored] += alone
    torch.testing.assert_close(found.advantages, expected)
