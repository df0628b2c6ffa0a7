"""The soft gate of SAPO."""

from dataclasses import dataclass

import torch

from rlmods.ops import importance_ratio
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("ratio")
class Soft:
    """Soft gate: f(r) A with f(r) = 4 / tau * sigmoid(tau (r - 1)). The gradient decays with the
    distance from r = 1; no hard clip.

    SAPO, arXiv:2511.20347. f'(1) = 1 for every tau, so the first step is the plain policy gradient.
    Nothing is clipped."""

    positive_temperature: Positive = 1.0
    """tau where A > 0."""
    negative_temperature: Positive = 1.05
    """tau elsewhere, above 0. Larger, because lowering one token's probability raises that of all
    others, which adds noise."""

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        ratio = importance_ratio(log_ratio, mask)
        advantages = torch.where(mask, advantages, 0.0)
        tau = torch.where(advantages > 0, self.positive_temperature, self.negative_temperature)
        tau = tau.to(ratio.dtype)
        gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
        return Surrogate(gate * advantages, torch.zeros_like(mask))
