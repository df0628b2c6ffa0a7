"""The advantage of PPO."""

from dataclasses import dataclass

import torch

from rlmods.errors import check_bounds
from rlmods.needs import AdvantageNeeds
from rlmods.ops import whiten
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class GAE:
    """Generalized advantage estimation: delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma
    lam A_{t+1},  returns_t = A_t + V_t.

    Schulman et al. 2015, arXiv:1506.02438, equation 16. t runs over the policy's tokens only: slots
    where the mask is False (padding, or tool output inside a response) are skipped, and V after the
    last token is 0."""

    gamma: float = 1.0
    """Discount per token, 0 to 1."""
    lam: float = 0.95
    """Lambda, 0 to 1. 0: one-step temporal difference (low variance); 1: Monte Carlo (no bias)."""
    whiten: bool = False
    """Normalise the advantages to mean 0 and variance 1 over the tokens trained on, of all ranks.
    `returns` are not changed."""

    @property
    def needs(self) -> AdvantageNeeds:
        return AdvantageNeeds(values=True, credit="token", normalizes_batch=self.whiten)

    def __post_init__(self) -> None:
        rules = {
            "gamma": (0 <= self.gamma <= 1, "between 0 and 1"),
            "lam": (0 <= self.lam <= 1, "between 0 and 1"),
        }
        check_bounds(self, "advantage", rules)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        credit = self.estimate(rewards, mask, group, values)
        return Credit(self.normalize(credit.advantages, mask), credit.returns)

    def estimate(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        """Return the advantages before they are normalised, and the returns."""
        if values is None:
            raise ValueError("GAE needs values: add a critic, as in critic=separate")
        rewards = torch.where(mask, rewards, 0.0)
        values = torch.where(mask, values, 0.0)
        advantages = torch.zeros_like(values)
        next_value = torch.zeros_like(values[:, 0])
        next_advantage = torch.zeros_like(values[:, 0])
        for t in reversed(range(values.shape[1])):
            delta = rewards[:, t] + self.gamma * next_value - values[:, t]
            advantage = delta + self.gamma * self.lam * next_advantage
            advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
            next_value = torch.where(mask[:, t], values[:, t], next_value)
            next_advantage = torch.where(mask[:, t], advantages[:, t], next_advantage)
        return Credit(advantages, advantages + values)

    def normalize(self, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return the advantages with mean 0 and variance 1 over the true slots of all ranks, or
        unchanged without `whiten`."""
        return whiten(advantages, mask) if self.whiten else advantages
