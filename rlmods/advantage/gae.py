"""The advantage of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.ops import whiten
from rlmods.types import Credit


@dataclass(frozen=True)
class GAE:
    """delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1},  returns_t = A_t + V_t.

    Schulman et al. 2015, arXiv:1506.02438, equation 16. t runs over the tokens of the policy alone: slots where the mask is False (padding,
    or what a tool said in the middle of a response) are stepped over, and V after the last token is 0."""

    gamma: float = 1.0
    """Discount per token, 0 to 1."""
    lam: float = 0.95
    """0 is the one-step difference (little variance), 1 Monte Carlo (no bias)."""
    whiten: bool = False
    """Give the advantages of all ranks mean 0 and variance 1. `returns` stay as they are."""

    needs_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"GAE: {name} must be between 0 and 1, got {getattr(self, name)}")

    def __call__(
        self,
        rewards: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        group: Int[Tensor, " N"],
        values: Float[Tensor, "N T"] | None = None,
    ) -> Credit:
        if values is None:
            raise ValueError("GAE: values are missing; it needs a critic")
        rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
        advantages = torch.zeros_like(values)
        next_value, next_advantage = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
        for t in reversed(range(values.shape[1])):
            delta = rewards[:, t] + self.gamma * next_value - values[:, t]
            advantages[:, t] = torch.where(mask[:, t], delta + self.gamma * self.lam * next_advantage, 0.0)
            next_value = torch.where(mask[:, t], values[:, t], next_value)
            next_advantage = torch.where(mask[:, t], advantages[:, t], next_advantage)
        returns = advantages + values
        return Credit(whiten(advantages, mask) if self.whiten else advantages, returns)
