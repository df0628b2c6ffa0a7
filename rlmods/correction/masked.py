"""Masked importance sampling."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from rlmods.correction.sampler_ratio import Level, sampler_ratio
from rlmods.ops import binary_divergence, broadcast_to_tokens, masked_mean
from rlmods.settings.bounds import AT_LEAST_1, Fraction, Limit, PositiveLimit, bounded
from rlmods.types import ImportanceWeights, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("correction")
class Masked:
    """Masked importance weight: w = rho, with rho = pi_old / pi_behavior, and 0 where the gate says
    that sampler and trainer disagree. Such tokens have no effect, instead of a bounded one.

        gate=ratio: 0 unless low <= rho <= high     gate=tv, kl: 0 if D(pi_behavior, pi_old) > limit

    By ratio and token: IcePop (Ring-1T, arXiv:2510.18855), whose bounds are the defaults. By ratio
    and response: MIS (Liu et al. 2025, "When Speed Kills Stability"), with `level: sequence`,
    `low: 0` and `high: 2`. D is the divergence of DPPO (arXiv:2602.04879, `ratio=dppo`), as in
    prime-rl's mask by total variation, of the events "the sampled token" and "any other": a bound
    on it spares rare tokens, whose ratio says little about the distribution. As in all of these,
    masked tokens stay in the denominators of the loss, so that the weight of a token does not
    depend on how many others are masked."""

    low: Fraction = 0.5
    """Lower bound of rho with gate=ratio; 0 to 1. 0: none."""
    high: Annotated[Limit, AT_LEAST_1] = 5.0
    """Upper bound of rho with gate=ratio."""
    level: Level = "token"
    """token: each token's own ratio or divergence, which masks tokens. sequence: the product of the
    ratios of a response, or the mean of its divergences, which masks responses."""
    gate: Literal["ratio", "tv", "kl"] = "ratio"
    """What is bounded: the ratio, total variation, or KL(pi_behavior || pi_old) in nats."""
    limit: PositiveLimit = 0.2
    """Upper bound of the divergence; above 0. prime-rl has 0.2 for total variation."""

    def __call__(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> ImportanceWeights:
        ratio = sampler_ratio(old_logprobs, behavior_logprobs, mask, self.level)
        if self.gate == "ratio":
            outside = (ratio < self.low) | (ratio > self.high)
        else:
            outside = self.divergence(old_logprobs, behavior_logprobs, mask) > self.limit
        return ImportanceWeights(torch.where(outside, 0.0, ratio), outside)

    def divergence(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> TokenFloats:
        """Return D of each token, or the mean over its response; 0 in masked slots."""
        assert self.gate != "ratio"
        behavior = torch.where(mask, behavior_logprobs, 0.0)
        log_ratio = torch.where(mask, old_logprobs - behavior_logprobs, 0.0).detach()
        by_token = torch.where(mask, binary_divergence(self.gate, behavior, log_ratio), 0.0)
        if self.level == "token":
            return by_token
        return broadcast_to_tokens(masked_mean(by_token, mask), mask)
