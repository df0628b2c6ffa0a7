"""The soft gate of SAPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import importance
from rlmods.types import Surrogate


@dataclass(frozen=True)
class Soft:
    """f(r) A with f(r) = 4 / tau * sigmoid(tau (r - 1)): the gradient fades with the distance from r = 1 instead of stopping at a bound.

    SAPO, arXiv:2511.20347. f'(1) = 1 for every tau, so the first step is plain policy gradient. Nothing is ever clipped."""

    positive_temperature: float = 1.0
    """tau where A > 0."""
    negative_temperature: float = 1.05
    """tau elsewhere; larger, because pushing one token down pushes all others up and so spreads noise."""

    def __post_init__(self) -> None:
        for name in ("positive_temperature", "negative_temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Soft: {name} must be above 0, got {getattr(self, name)}")

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        ratio, advantages = importance(log_ratio, mask), torch.where(mask, advantages, 0.0)
        tau = torch.where(advantages > 0, self.positive_temperature, self.negative_temperature).to(ratio.dtype)
        return Surrogate(torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages, torch.zeros_like(mask))
