"""Masked importance sampling."""

from dataclasses import dataclass

import torch

from rlmods.correction.sampler_ratio import LEVELS, Level, sampler_ratio
from rlmods.errors import Limit, check_bounds
from rlmods.types import ImportanceWeights, TokenFloats, TokenMask


@dataclass(frozen=True)
class Masked:
    """Masked importance weight: w = rho if low <= rho <= high, else 0, with rho = pi_old /
    pi_behavior. Tokens about which sampler and trainer disagree have no effect, instead of a
    bounded one.

    By token: IcePop (Ring-1T, arXiv:2510.18855), whose bounds are the defaults. By response: MIS
    (Liu et al. 2025, "When Speed Kills Stability"), with `level: sequence`, `low: 0` and `high: 2`.
    As in both, masked tokens stay in the denominators of the loss, so that the weight of a token
    does not depend on how many others are masked."""

    low: float = 0.5
    """Lower bound of rho; 0 to 1. 0: none."""
    high: Limit = 5.0
    """Upper bound of rho; at least 1."""
    level: Level = "token"
    """token: each token's own ratio, which masks tokens. sequence: the product of the ratios of a
    response, which masks responses."""

    def __post_init__(self) -> None:
        rules = {
            "low": (0 <= self.low <= 1, "between 0 and 1"),
            "high": (self.high >= 1, "at least 1"),
            "level": (self.level in LEVELS, " or ".join(LEVELS)),
        }
        check_bounds(self, "correction", rules)

    def __call__(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> ImportanceWeights:
        ratio = sampler_ratio(old_logprobs, behavior_logprobs, mask, self.level)
        outside = (ratio < self.low) | (ratio > self.high)
        return ImportanceWeights(torch.where(outside, 0.0, ratio), outside)
