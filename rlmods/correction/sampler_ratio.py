"""The importance ratio of trainer over sampler."""

from typing import Literal

import torch

from rlmods.ops import importance_ratio
from rlmods.types import TokenFloats, TokenMask

Level = Literal["token", "sequence"]


def sampler_ratio(
    old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask, level: Level
) -> TokenFloats:
    """Return rho = pi_old / pi_behavior without a gradient: of each token, or with
    `level="sequence"` of its response, which is the product (not the geometric mean) of the ratios
    of its tokens. 1 in masked slots."""
    log_ratio = torch.where(mask, old_logprobs - behavior_logprobs, 0.0).detach()
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    return importance_ratio(log_ratio, mask)
