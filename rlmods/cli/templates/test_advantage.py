"""Run with `make test ARGS=plugins/name`."""

import torch

from rlmods.cli.templates.advantage import Name


def test_best_of_group_has_advantage_0() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    advantages = Name(scale=0.5)(rewards, mask, torch.tensor([0, 0, 1])).advantages
    assert advantages.tolist() == [[-1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]
