"""The n-step advantage."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlmods.needs import AdvantageNeeds
from rlmods.ops import whiten
from rlmods.settings.bounds import Count, Fraction, bounded
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class NStep:
    """n-step advantage: A_t = r_t + gamma r_{t+1} + ... + gamma^{n-1} r_{t+n-1} + gamma^n V_{t+n} -
    V_t,  returns_t = A_t + V_t.

    TD(n), Sutton and Barto 2018, equation 7.1; A3C, arXiv:1602.01783, section 4. n = 1 is GAE with
    lambda 0, and n of at least the length of a response is GAE with lambda 1. t runs over the
    policy's tokens only: slots where the mask is False are skipped. r and V after the last token
    are 0."""

    n: Count = 8
    """Number of rewards before the critic's estimate replaces the later ones, in tokens; at least
    1."""
    gamma: Fraction = 1.0
    """Discount per token, 0 to 1."""
    whiten: bool = False
    """Normalise the advantages to mean 0 and variance 1 over the tokens trained on, of all ranks.
    `returns` are not changed."""

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
        assert values is not None, "NStep needs values: add a critic, as in critic=separate"
        width = mask.shape[1]
        n = min(self.n, width)
        # true slots first, so that t + n is n columns to the right
        order = (~mask).long().argsort(dim=1, stable=True)

        def compact(x: Tensor) -> Tensor:
            return torch.nn.functional.pad(torch.where(mask, x, 0.0).gather(1, order), (0, n))

        r = compact(rewards)
        v = compact(values)
        returns = self.gamma**n * v[:, n:]
        for i in range(n):
            returns = returns + self.gamma**i * r[:, i : i + width]
        returns = torch.where(mask, torch.zeros_like(returns).scatter(1, order, returns), 0.0)
        return Credit(returns - torch.where(mask, values, 0.0), returns)

    def normalize(self, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return the advantages with mean 0 and variance 1 over the true slots of all ranks, or
        unchanged without `whiten`."""
        return whiten(advantages, mask) if self.whiten else advantages
