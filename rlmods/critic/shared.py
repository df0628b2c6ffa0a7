"""A value head on the policy's own trunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlmods.critic.settings import Settings
from rlmods.policy import Policy


class ValueHead(nn.Module):
    """One number from the policy's hidden state, float32; 0 at first."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            found: Tensor = self.linear(hidden.float())
        return found


@dataclass(frozen=True)
class Shared(Settings):
    """Costs one linear layer; the value loss also shapes the policy's trunk (PPO, arXiv:1707.06347, equation 9), so weigh it."""

    def __call__(self, policy: Policy) -> ValueHead:
        """Make it."""
        return ValueHead(policy.model.config.get_text_config().hidden_size).to(policy.device)
