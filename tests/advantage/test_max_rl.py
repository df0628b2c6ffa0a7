from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given

from rlmods.advantage import MaxRL, max_rl
from rlmods.errors import UserError
from rlmods.types import Credit
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batches, few
from tests.support.reference import group_advantage


def non_negative(b: Batch) -> Batch:
    return replace(b, rewards=b.rewards.abs())


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    b = non_negative(b)
    p = b.poisoned()
    advantages = MaxRL()(p.rewards, p.mask, p.group).advantages
    expected = group_advantage("group_mean", b.rewards, b.mask, b.group)
    for i in range(len(b.rewards)):
        members = [
            float(b.rewards[j][b.mask[j]].sum())
            for j in range(len(b.rewards))
            if b.group[j] == b.group[i] and b.mask[j].any()
        ]
        if members:
            expected[i] /= sum(members) / len(members)
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 4])
def test_expectation_is_the_gradient_of_the_truncated_log_likelihood(p: float, size: int) -> None:
    """With R ~ Bernoulli(p): log p = -sum_k (1 - p)^k / k, whose first G - 1 terms have the
    derivative sum_k (1 - p)^(k - 1)."""
    total = 0.0
    for outcome in product((0.0, 1.0), repeat=size):
        rewards, wins = torch.tensor(outcome, dtype=torch.float64)[:, None], sum(outcome)
        advantages = MaxRL()(
            rewards, torch.ones(size, 1, dtype=torch.bool), torch.zeros(size, dtype=torch.long)
        ).advantages
        score = torch.where(rewards > 0, 1 / p, -1 / (1 - p))  # d log P(R) / dp
        total += p**wins * (1 - p) ** (size - wins) * float((advantages * score).mean())
    assert total == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, size)))


def test_a_negative_reward_is_refused() -> None:
    rewards = torch.tensor([[1.0], [-1.0]])
    with pytest.raises(UserError, match=r"1 rewards are negative: type reward=accuracy"):
        MaxRL()(rewards, torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.long))
    one_masked = torch.tensor([[True], [False]])
    assert (MaxRL()(rewards, one_masked, torch.zeros(2, dtype=torch.long)).advantages == 0).all()


def test_a_negative_reward_of_one_rank_is_refused_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that went on would wait for the others."""

    def estimate(*rewards: float) -> Credit | str:
        try:
            return MaxRL()(
                torch.tensor(rewards)[:, None],
                torch.ones(2, 1, dtype=torch.bool),
                torch.zeros(2, dtype=torch.long),
            )
        except UserError as error:
            return str(error)

    first, second = on_ranks(
        monkeypatch, max_rl, lambda: estimate(-1.0, -2.0), lambda: estimate(1.0, 0.0)
    )
    assert first == second
    assert "2 rewards are negative" in str(first)
