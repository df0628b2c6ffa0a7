"""The divergence mask of DPPO."""

from dataclasses import dataclass
from typing import Literal

import torch

from rlmods.needs import RatioNeeds
from rlmods.ops import binary_divergence, importance_ratio
from rlmods.settings.bounds import PositiveLimit, bounded
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("ratio")
class DPPO:
    """Divergence mask: M r A, where M = 0 on tokens whose probability moved in the direction of A
    by more than a bound on the divergence between pi_old and pi, else 1. Nothing else is clipped.

    DPPO, arXiv:2602.04879, equations 11 and 12. The divergence is computed from two events, "the
    sampled token" and "any other", with p the probability of the sampled token:

        tv: |p - p_old|        kl: p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))

    A bound on the ratio, in contrast, stops rare tokens after small changes of the distribution,
    and frequent ones only after large changes. The paper's pi_old is the policy that sampled.
    `clipped` marks the tokens with M = 0."""

    divergence: Literal["tv", "kl"] = "tv"
    """tv: total variation. kl: KL(pi_old || pi), nats."""
    low: PositiveLimit = 0.15
    """Bound where A < 0 and the probability fell; above 0. The paper has 0.15 for tv and 0.05 for
    kl."""
    high: PositiveLimit = 0.15
    """Bound where A > 0 and the probability rose."""

    needs = RatioNeeds(old_logprobs=True)

    def __call__(
        self,
        log_ratio: TokenFloats,
        advantages: TokenFloats,
        mask: TokenMask,
        old_logprobs: TokenFloats,
    ) -> Surrogate:
        advantages = torch.where(mask, advantages, 0.0)
        d = torch.where(mask, log_ratio.detach(), 0.0)
        old = torch.where(mask, old_logprobs, 0.0)
        divergence = binary_divergence(self.divergence, old, d)
        moved_up = (divergence > self.high) & (d > 0)
        moved_down = (divergence > self.low) & (d < 0)
        stopped = (moved_up & (advantages > 0)) | (moved_down & (advantages < 0))
        kept = mask & ~stopped
        objective = importance_ratio(log_ratio, kept) * torch.where(kept, advantages, 0.0)
        return Surrogate(objective, stopped)
