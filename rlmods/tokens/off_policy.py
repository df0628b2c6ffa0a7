"""Training without wrong responses that the policy has moved away from."""

from dataclasses import dataclass

import torch

from rlmods.needs import TokenNeeds
from rlmods.ops import masked_mean
from rlmods.settings.bounds import PositiveLimit, bounded
from rlmods.types import TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("tokens")
class OffPolicy:
    """Off-policy sequence masking: leave a token out if A_t < 0 and its response has

        1/|y| sum_t (log pi_behavior(y_t) - log pi(y_t)) > threshold

    DeepSeek-V3.2, arXiv:2512.02556, equation 9. pi_behavior is the sampler's distribution,
    so that the distance includes a difference between sampler and trainer as well as the optimizer
    steps since. As there, masked tokens stay in the denominators of the loss. Responses with
    positive advantages are always trained: only mistakes of another policy are no lesson."""

    threshold: PositiveLimit = 0.5
    """Largest distance, nats per token; above 0. The paper names no value; 0.5 is the example of
    TRL's `off_policy_mask_threshold`."""

    needs = TokenNeeds(behavior=True)

    def __call__(
        self,
        logprobs: TokenFloats,
        advantages: TokenFloats,
        mask: TokenMask,
        behavior_logprobs: TokenFloats,
    ) -> TokenMask:
        gap = torch.where(mask, behavior_logprobs - logprobs, 0.0)
        is_far = masked_mean(gap, mask) > self.threshold
        return mask & ~(is_far[:, None] & (advantages < 0))
