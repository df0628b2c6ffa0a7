"""The geometric mean of clipped token ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import importance, masked_mean
from rlmods.types import Surrogate


@dataclass(frozen=True)
class GeometricMean:
    """(prod_t r'_t)^(1/|y|) A with r' = min(r, e^high) where A > 0 and max(r, e^-low) where A < 0: clipped by token, averaged in logs.

    GMPO, arXiv:2507.20673. The value stands on every token of a response, so that sequence_mean gives the paper's objective;
    tokens that are not clipped share its gradient. A token of outlying ratio moves a geometric mean little, which leaves room for bounds
    far wider than PPO's."""

    level: ClassVar = "sequence"

    low: float = 0.4
    """The lower bound of log r is -low; at least 0."""
    high: float = 0.4
    """The upper bound of log r is high; at least 0."""

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"GeometricMean: {name} must be at least 0, got {getattr(self, name)}")

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        d, advantages = torch.where(mask, log_ratio, 0.0), torch.where(mask, advantages, 0.0)
        bound = torch.where(advantages > 0, d.clamp(max=self.high), torch.where(advantages < 0, d.clamp(min=-self.low), d))
        ratio = importance(masked_mean(bound, mask)[:, None].expand_as(d), mask)
        return Surrogate(ratio * advantages, bound != d)
