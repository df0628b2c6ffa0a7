"""The geometric mean of clipped token ratios."""

from dataclasses import dataclass

import torch

from rlmods.needs import RatioNeeds
from rlmods.ops import importance_ratio, masked_mean
from rlmods.settings.bounds import NonNegativeLimit, bounded
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("ratio")
class GeometricMean:
    """Geometric mean of clipped ratios: (prod_t r'_t)^(1/|y|) A with r' = min(r, e^high) where A >
    0 and max(r, e^-low) where A < 0.

    GMPO, arXiv:2507.20673. Every token of a response holds the same value, so that
    aggregation=sequence_mean gives the paper's objective; the tokens that are not clipped share its
    gradient. An outlier ratio has little effect on a geometric mean, which allows bounds far wider
    than PPO's."""

    low: NonNegativeLimit = 0.4
    """The lower bound of log r is -low."""
    high: NonNegativeLimit = 0.4
    """The upper bound of log r is high."""

    needs = RatioNeeds(level="sequence")

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        d = torch.where(mask, log_ratio, 0.0)
        advantages = torch.where(mask, advantages, 0.0)
        clipped = torch.where(advantages < 0, d.clamp(min=-self.low), d)
        clipped = torch.where(advantages > 0, d.clamp(max=self.high), clipped)
        mean = masked_mean(clipped, mask)[:, None].expand_as(d)
        ratio = importance_ratio(mean, mask)
        return Surrogate(ratio * advantages, clipped != d)
