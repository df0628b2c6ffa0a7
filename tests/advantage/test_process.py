import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.advantage import GroupNorm, Process
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import group_advantage, process


def steps_of(b: Batch, seed: int = 0) -> Tensor:
    """Random step ends, in the mask or not."""
    return torch.rand(b.mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.4


def last(mask: Tensor) -> Tensor:
    return mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))


@few
@given(batches, st.integers(0, 10**6), st.floats(1e-8, 1e-2), st.booleans())
def test_equals_the_loop(b: Batch, seed: int, eps: float, unbiased: bool) -> None:
    p, steps = b.poisoned(), steps_of(b, seed)
    advantages = Process(eps, unbiased)(p.rewards, p.mask, p.group, None, steps).advantages
    torch.testing.assert_close(
        advantages, process(b.rewards, b.mask, b.group, steps, eps, unbiased)
    )


def test_later_steps_are_discounted_by_step() -> None:
    """Rewards 1, 0, 1 and 0: normalised u, -u, u; every token of a step has the same discount,
    whatever its length."""
    mask = torch.tensor(
        [[True, False, True, True, True, True], [True, True, False, False, False, False]]
    )
    rewards, steps = torch.zeros(2, 6, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.bool)
    for i, t, r in ((0, 0, 1.0), (0, 3, 0.0), (0, 5, 1.0), (1, 1, 0.0)):
        rewards[i, t], steps[i, t] = r, True
    advantages = Process(gamma=0.5)(rewards, mask, torch.tensor([3, 3]), None, steps).advantages
    u = 0.5 / (1 / 3) ** 0.5
    second, third = -u + 0.5 * u, u
    assert advantages[0].tolist() == pytest.approx(
        [u + 0.5 * second, 0, second, second, third, third], abs=1e-5
    )
    assert advantages[1].tolist() == pytest.approx([-u, -u, 0, 0, 0, 0], abs=1e-5)


def test_one_step_per_response_equals_group_norm() -> None:
    b = batch(9, 6, seed=3)
    rewards = torch.where(last(b.mask), b.rewards, 0)
    expected = GroupNorm()(rewards, b.mask, b.group).advantages
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(
        Process()(rewards, b.mask, b.group, None, last(b.mask)).advantages, expected
    )


def test_every_step_of_the_group_has_the_same_weight() -> None:
    """The mean is over steps and not over the responses' means: a response with more steps has more
    weight."""
    rewards, group = (
        torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64),
        torch.tensor([0, 0]),
    )
    mask = torch.tensor([[True] * 3, [True, False, False]])
    advantages = Process()(rewards, mask, group, None, mask).advantages
    assert advantages[0].tolist() == pytest.approx([1.5, 1.0, 0.5], abs=1e-5)
    assert advantages[1, 0].item() == pytest.approx(-1.5, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_step_rewards_give_exactly_0(dtype: torch.dtype) -> None:
    rewards, mask = torch.full((4, 5), 0.95, dtype=dtype), torch.ones(4, 5, dtype=torch.bool)
    steps = torch.arange(5) % 2 == torch.tensor([[0], [0], [1], [1]])
    assert (
        Process()(rewards, mask, torch.zeros(4, dtype=torch.long), None, steps).advantages == 0
    ).all()


def test_groups_are_defined_by_id_and_leave_out_unscored_responses() -> None:
    b = batch(9, 6, seed=3)
    steps = steps_of(b)
    full = Process()(b.rewards, b.mask, b.group, None, steps).advantages
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    shuffled = b.select(order)
    torch.testing.assert_close(
        Process()(shuffled.rewards, shuffled.mask, shuffled.group, None, steps[order]).advantages,
        full[order],
    )
    mask = b.mask.clone()
    mask[2] = False
    rest = torch.arange(9) != 2
    remaining = Process()(
        b.rewards[rest], b.mask[rest], b.group[rest], None, steps[rest]
    ).advantages
    torch.testing.assert_close(
        Process()(b.rewards, mask, b.group, None, steps).advantages[rest], remaining
    )
    assert not torch.allclose(remaining, full[rest])


def test_rewards_outside_of_step_ends_are_ignored() -> None:
    b = batch(9, 6, seed=3)
    steps = steps_of(b)
    other = torch.where(steps, b.rewards, b.rewards + 5)
    one, two = (Process()(r, b.mask, b.group, None, steps).advantages for r in (b.rewards, other))
    assert torch.equal(one, two)


def test_responses_without_steps_get_0() -> None:
    b = batch(5, 4, seed=1)
    assert (
        Process()(b.rewards, b.mask, b.group, None, torch.zeros_like(b.mask)).advantages == 0
    ).all()


@few
@given(batches, st.integers(0, 10**6), st.floats(0.1, 3))
def test_outcomes_are_normalised_separately(b: Batch, seed: int, weight: float) -> None:
    steps, g = steps_of(b, seed), torch.Generator().manual_seed(seed)
    outcomes = torch.randn(len(b.mask), generator=g, dtype=torch.float64) * 100
    known = torch.rand(len(b.mask), generator=g) < 0.8
    last_only = torch.where(last(b.mask), outcomes[:, None], 0.0)
    outcome = group_advantage("group_norm", last_only, b.mask & known[:, None], b.group)
    p = b.poisoned()
    credit = Process(outcome_weight=weight)(
        p.rewards, p.mask, p.group, None, steps, outcomes.where(known, torch.nan)
    )
    on_every_token = torch.where(b.mask & known[:, None], outcome, 0.0)
    torch.testing.assert_close(
        credit.advantages, process(b.rewards, b.mask, b.group, steps) + weight * on_every_token
    )


def test_without_steps_the_outcome_advantage_is_group_norm() -> None:
    b = batch(9, 6, seed=3)
    no_steps = torch.zeros_like(b.mask)
    outcomes = torch.where(b.mask, b.rewards, 0).sum(1)
    advantages = Process(outcome_weight=1.0)(
        torch.zeros_like(b.rewards), b.mask, b.group, None, no_steps, outcomes
    ).advantages
    torch.testing.assert_close(advantages, GroupNorm()(b.rewards, b.mask, b.group).advantages)
    assert Process(outcome_weight=1.0).needs.outcomes
    assert not Process().needs.outcomes
