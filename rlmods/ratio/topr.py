"""The tapered importance weight of TOPR."""

from dataclasses import dataclass
from typing import Literal

import torch

from rlmods.needs import RatioNeeds
from rlmods.settings.bounds import bounded
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("ratio")
class TOPR:
    """Tapered importance weight: w A log(pi / pi_old) with w = 1 where A > 0, and w = min(pi(y) /
    pi_old(y), 1), without a gradient, elsewhere.

    TOPR, arXiv:2503.14286. Good responses are learned as in supervised fine-tuning, at any distance
    from pi_old; the weight of a bad one falls with its probability, so that the objective is
    bounded and needs no KL penalty. pi_old is a constant that makes the value 0 on-policy.
    `clipped` marks the tokens whose weight was clipped; they keep a gradient."""

    level: Literal["sequence_token", "token"] = "sequence_token"
    """sequence_token: one weight per response, from the product of its tokens' ratios (the paper),
    and each token's own advantage. token: each token's own ratio."""

    @property
    def needs(self) -> RatioNeeds:
        return RatioNeeds(level=self.level)

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        d = torch.where(mask, log_ratio, 0.0)
        advantages = torch.where(mask, advantages, 0.0)
        distance = d.detach()
        if self.level == "sequence_token":
            distance = distance.sum(1, keepdim=True).expand_as(d)
        weight = torch.where(advantages > 0, 1.0, distance.clamp(max=0.0).exp())
        return Surrogate(weight * advantages * d, (advantages < 0) & (distance > 0))
