"""Rewards that have no effect."""

import torch

from rlmods.advantage import NoAdvantage


def test_is_0_whatever_the_rewards() -> None:
    rewards = torch.tensor([[0.0, torch.nan, 5.0], [1e6, -torch.inf, 0.0]])
    credit = NoAdvantage()(rewards, torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 0]), None)
    assert torch.equal(credit.advantages, torch.zeros(2, 3))
    assert credit.returns is None
