import pytest
import torch
from hypothesis import given, strategies as st

from rlmods import ops
from rlmods.advantage import GAE, GroupMean, ReinforcePP
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import reinforce_pp

BASELINES = ["none", "group"]


@pytest.mark.parametrize("baseline", BASELINES)
@few
@given(batches, st.sampled_from([0.0, 0.9, 1.0]))
def test_equals_the_loop(baseline: str, b: Batch, gamma: float) -> None:
    p = b.poisoned()
    advantages = ReinforcePP(gamma, baseline)(p.rewards, p.mask, p.group).advantages
    torch.testing.assert_close(
        advantages, reinforce_pp(b.rewards, b.mask, b.group, gamma, baseline)
    )


@pytest.mark.parametrize("baseline", BASELINES)
def test_mean_is_0_and_variance_1_over_all_tokens(baseline: str) -> None:
    b = batch(9, 8, seed=4)
    valid = ReinforcePP(baseline=baseline)(b.rewards, b.mask, b.group).advantages[b.mask]
    assert valid.mean().item() == pytest.approx(0, abs=1e-12)
    assert valid.var(unbiased=False).item() == pytest.approx(1, abs=1e-6)


def test_without_a_baseline_equals_gae_with_values_of_0() -> None:
    b = batch(9, 8, seed=4)
    ppo = GAE(0.9, 1.0, whiten=True)(b.rewards, b.mask, b.group, torch.zeros_like(b.rewards))
    torch.testing.assert_close(
        ReinforcePP(0.9)(b.rewards, b.mask, b.group).advantages, ppo.advantages
    )


def test_a_penalty_counts_for_its_token_and_earlier_ones() -> None:
    """G_t is R minus the penalty at t and later, not minus the total penalty."""
    rewards, mask = (
        torch.tensor([[-0.5, -0.25, 1.0 - 0.125]], dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.bool),
    )
    advantages = ReinforcePP()(rewards, mask, torch.zeros(1, dtype=torch.long)).advantages[0]
    to_go = torch.tensor([0.125, 0.625, 0.875], dtype=torch.float64)
    torch.testing.assert_close(
        advantages, (to_go - to_go.mean()) / to_go.std(unbiased=False), rtol=1e-6, atol=1e-6
    )


def test_group_baseline_of_outcome_rewards_equals_whitened_group_mean() -> None:
    b = batch(9, 8, seed=4)
    last = b.mask & (b.mask.cumsum(1) == b.mask.sum(1, keepdim=True))
    rewards = torch.where(last, b.rewards, 0)
    centred = GroupMean()(rewards, b.mask, b.group).advantages
    torch.testing.assert_close(
        ReinforcePP(baseline="group")(rewards, b.mask, b.group).advantages,
        ops.whiten(centred, b.mask),
    )


@pytest.mark.parametrize("baseline", BASELINES)
def test_two_ranks_whiten_over_both(monkeypatch: pytest.MonkeyPatch, baseline: str) -> None:
    b = batch(9, 8, seed=4)
    first = b.group == b.group[0]
    halves = [b.select(first.nonzero().squeeze(1)), b.select((~first).nonzero().squeeze(1))]
    part = ReinforcePP(baseline=baseline)
    expected = part(b.rewards, b.mask, b.group).advantages
    actual = on_ranks(
        monkeypatch, ops, *[lambda h=h: part(h.rewards, h.mask, h.group).advantages for h in halves]
    )
    torch.testing.assert_close(torch.cat(actual), torch.cat([expected[first], expected[~first]]))


def test_needs_groups_only_for_the_group_baseline() -> None:
    assert not ReinforcePP().needs.group
    assert ReinforcePP(baseline="group").needs.group
