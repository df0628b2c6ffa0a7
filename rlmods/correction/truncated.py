"""Truncated importance sampling."""

from dataclasses import dataclass
from typing import Annotated

from rlmods.correction.sampler_ratio import Level, sampler_ratio
from rlmods.settings.bounds import AT_LEAST_1, Limit, bounded
from rlmods.types import ImportanceWeights, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("correction")
class Truncated:
    """Truncated importance weight: w = min(rho, high) with rho = pi_old / pi_behavior. The bound
    limits the variance. There is no lower bound, as small weights do not add to it.

    Truncated importance sampling (Ionides 2008), between sampler and trainer as TIS (Yao et al.
    2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training") and as rho-bar
    in IMPALA's V-trace (arXiv:1802.01561, section 4). Where no weight is truncated and the sampler
    can draw every token, E_behavior[w f] = E_old[f]."""

    high: Annotated[Limit, AT_LEAST_1] = 2.0
    """Upper bound C of the weight."""
    level: Level = "token"
    """token: each token's own ratio. The equality holds for a token given its prefix, and prefixes
    stay the sampler's. sequence: the product of the ratios of a response, on all its tokens.
    The equality holds for responses, with a variance that grows with length."""

    def __call__(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> ImportanceWeights:
        ratio = sampler_ratio(old_logprobs, behavior_logprobs, mask, self.level)
        return ImportanceWeights(ratio.clamp(max=self.high), ratio > self.high)
