from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.advantage import GAE, NStep
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import gae

RATES = st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0])


@few
@given(batches, RATES, RATES)
def test_equals_the_quadratic_sum_whatever_is_in_masked_slots(
    b: Batch, gamma: float, lam: float
) -> None:
    advantages, returns = gae(b.rewards, b.values, b.mask, gamma, lam)
    p = b.poisoned()
    credit = GAE(gamma, lam)(p.rewards, p.mask, p.group, p.values)
    torch.testing.assert_close(credit.advantages, advantages)
    torch.testing.assert_close(credit.returns, returns)


def test_lambda_0_is_the_one_step_temporal_difference() -> None:
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.75]])
    credit = GAE(0.5, 0.0)(rewards, torch.ones(1, 3, dtype=torch.bool), torch.tensor([0]), values)
    assert credit.advantages.tolist() == [[0.5 * 0.25 - 0.5, 0.5 * 0.75 - 0.25, 1 - 0.75]]


def test_lambda_1_is_monte_carlo() -> None:
    b = batch(5, 6, seed=3)
    credit = GAE(1.0, 1.0)(b.rewards, b.mask, b.group, b.values)
    to_go = torch.where(b.mask, b.rewards, 0).flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(credit.returns, torch.where(b.mask, to_go, 0))


def test_outcome_reward_reaches_every_token_across_tool_output() -> None:
    mask = torch.tensor([[False, True, True, False, False, True, True, False]])
    rewards = torch.zeros(1, 8)
    rewards[0, 6] = 2.0
    credit = GAE(1.0, 1.0)(rewards, mask, torch.tensor([0]), torch.zeros(1, 8))
    assert credit.returns.tolist() == [[0, 2, 2, 0, 0, 2, 2, 0]]
    only_last = GAE(0.0, 1.0)(rewards, mask, torch.tensor([0]), torch.zeros(1, 8))
    assert only_last.returns.tolist() == [[0, 0, 0, 0, 0, 0, 2, 0]]


def test_masked_slots_inside_a_row_are_skipped() -> None:
    b = batch(6, 7, seed=6, holes=0.4)
    credit = GAE(0.9, 0.8)(b.rewards, b.mask, b.group, b.values)
    for i, keep in enumerate(b.mask):
        if keep.any():
            tight = GAE(0.9, 0.8)(
                b.rewards[i, keep][None],
                b.mask[i, keep][None],
                b.group[i : i + 1],
                b.values[i, keep][None],
            )
            torch.testing.assert_close(credit.advantages[i, keep], tight.advantages[0])


@pytest.mark.parametrize("part", [GAE(), NStep(2)])
def test_whitening_does_not_change_the_returns(part: GAE | NStep) -> None:
    b = batch(6, 7, seed=6).poisoned()
    plain = part(b.rewards, b.mask, b.group, b.values)
    white = replace(part, whiten=True)(b.rewards, b.mask, b.group, b.values)
    torch.testing.assert_close(white.returns, plain.returns)
    valid = white.advantages[b.mask]
    assert valid.mean().item() == pytest.approx(0, abs=1e-12)
    assert valid.var(unbiased=False).item() == pytest.approx(1, abs=1e-6)
    assert (white.advantages[~b.mask] == 0).all()


def test_whitening_a_single_token_gives_0() -> None:
    one = torch.tensor([[3.0, torch.nan]])
    credit = GAE(whiten=True)(one, torch.tensor([[True, False]]), torch.tensor([0]), one / 2)
    assert credit.advantages.tolist() == [[0, 0]]
    assert credit.returns.tolist() == [[3, 0]]


@few
@given(batches, RATES, RATES, st.sampled_from([0.05, 0.3, 2.0]))
def test_lambdas_of_vapo_equal_the_sum_of_each_row(
    b: Batch, gamma: float, critic_lam: float, alpha: float
) -> None:
    """The advantages with a lambda by the length of the row, the returns with another."""
    p = b.poisoned()
    credit = GAE(gamma, critic_lam=critic_lam, alpha=alpha)(p.rewards, p.mask, p.group, p.values)
    for i in range(len(b.mask)):
        row = b.select(torch.tensor([i]))
        length = max(1, int(row.mask.sum()))
        lam = max(0.0, 1 - 1 / (alpha * length))
        advantages, _ = gae(row.rewards, row.values, row.mask, gamma, lam)
        _, returns = gae(row.rewards, row.values, row.mask, gamma, critic_lam)
        # the lambda of a row is computed in float32
        torch.testing.assert_close(credit.advantages[i : i + 1], advantages, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(credit.returns[i : i + 1], returns)


def test_the_critic_has_the_lambda_of_the_policy_unless_it_has_its_own() -> None:
    b = batch(5, 6, seed=3)
    own = GAE(0.9, 0.8)(b.rewards, b.mask, b.group, b.values)
    same = GAE(0.9, 0.8, critic_lam=0.8)(b.rewards, b.mask, b.group, b.values)
    other = GAE(0.9, 0.8, critic_lam=1.0)(b.rewards, b.mask, b.group, b.values)
    assert own.returns is not None
    assert other.returns is not None
    assert torch.equal(same.returns, own.returns)
    assert torch.equal(other.advantages, own.advantages)
    assert (other.returns != own.returns)[b.mask].any()
