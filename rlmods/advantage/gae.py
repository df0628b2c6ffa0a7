"""The advantage of PPO."""

from dataclasses import dataclass

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.ops import whiten
from rlmods.settings.bounds import Fraction, Positive, bounded
from rlmods.types import Credit, RowFloats, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class GAE:
    """Generalized advantage estimation: delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma
    lam A_{t+1},  returns_t = A_t + V_t.

    Schulman et al. 2015, arXiv:1506.02438, equation 16. t runs over the policy's tokens only: slots
    where the mask is False (padding, or tool output inside a response) are skipped, and V after the
    last token is 0.

    VAPO (arXiv:2504.05118, section 4.2) has two lambdas: `critic_lam=1` for the returns, which are
    then Monte Carlo and have no bias, and for the advantages one that grows with the length, so
    that the last reward reaches the first tokens of long responses too:

        lam = 1 - 1 / (alpha l)  for a response of l sampled tokens, at least 0"""

    gamma: Fraction = 1.0
    """Discount per token, 0 to 1."""
    lam: Fraction = 0.95
    """Lambda, 0 to 1. 0: one-step temporal difference (low variance); 1: Monte Carlo (no bias)."""
    whiten: bool = False
    """Normalise the advantages to mean 0 and variance 1 over the tokens trained on, of all ranks.
    `returns` are not changed."""
    critic_lam: Fraction | None = None
    """Lambda of `returns`, the targets of the critic, 0 to 1; null: the lambda of the
    advantages."""
    alpha: Positive | None = None
    """Length-adaptive lambda in place of `lam`; above 0, 0.05 in VAPO. null: `lam`."""

    @property
    def needs(self) -> AdvantageNeeds:
        return AdvantageNeeds(
            values=True, credit="token", normalizes_batch=self.whiten, discount=self.gamma
        )

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
        assert values is not None, "GAE needs values: add a critic, as in critic=separate"
        lam = self.lam if self.alpha is None else adaptive_lambda(mask, self.alpha)
        advantages = discounted_errors(rewards, mask, values, self.gamma, lam)
        targets = advantages
        if self.critic_lam is not None:
            targets = discounted_errors(rewards, mask, values, self.gamma, self.critic_lam)
        return Credit(advantages, targets + torch.where(mask, values, 0.0))

    def normalize(self, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return the advantages with mean 0 and variance 1 over the true slots of all ranks, or
        unchanged without `whiten`."""
        return whiten(advantages, mask) if self.whiten else advantages


def adaptive_lambda(mask: TokenMask, alpha: float) -> RowFloats:
    """Return 1 - 1 / (alpha l) of each row with l true slots, at least 0."""
    length = mask.sum(1).clamp(min=1)
    return (1 - 1 / (alpha * length)).clamp(min=0.0)


def discounted_errors(
    rewards: TokenFloats, mask: TokenMask, values: TokenFloats, gamma: float, lam: float | RowFloats
) -> TokenFloats:
    """Return A_t = delta_t + gamma lam A_{t+1} over each row's true slots; 0 elsewhere."""
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantages[:, t], next_advantage)
    return advantages
