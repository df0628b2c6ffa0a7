"""Weighted log-likelihood, without an importance ratio."""

from dataclasses import dataclass

import torch

from rlmods.needs import RatioNeeds
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
class LogLikelihood:
    """Weighted log-likelihood: A log(pi / pi_old), whose gradient is A grad log pi at any distance
    from pi_old; with A = 1, SFT.

    RFT, arXiv:2308.01825. pi_old is a constant that makes the value 0 on-policy. Nothing is
    clipped. The probabilities have temperature 1, as in SFT, at any temperature of the
    rollout."""

    needs = RatioNeeds(level="none", temperature=1.0)

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        objective = torch.where(mask, log_ratio, 0.0) * torch.where(mask, advantages, 0.0)
        return Surrogate(objective, torch.zeros_like(mask))
