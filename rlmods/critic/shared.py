"""A value head on the policy's trunk."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlmods.critic.loss import CriticConfig
from rlmods.policy import Policy


class ValueHead(nn.Module):
    """A linear layer from the policy's hidden state to one value, float32, initialised to 0."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.linear(hidden.float())
        return values


@dataclass(frozen=True)
class Shared(CriticConfig):
    """A value head on the policy's trunk: one linear layer. The value loss also trains the trunk
    (PPO, arXiv:1707.06347, equation 9), so choose `coefficient` with care."""

    def __call__(self, policy: Policy) -> ValueHead:
        """Return the value head."""
        return ValueHead(policy.model.config.get_text_config().hidden_size).to(policy.device)
