"""The clipped importance weight of CISPO."""

from dataclasses import dataclass

import torch

from rlmods.ops import importance_ratio
from rlmods.settings.bounds import NonNegative, bounded
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("ratio")
class CISPO:
    """Clipped importance weight: sg[clip(r, 1 - low, 1 + high)] A log(pi / pi_old). Every token
    keeps a gradient; its weight is bounded.

    MiniMax-M1 (CISPO), arXiv:2506.13585, equations 4 and 5. The paper has log pi instead of log(pi
    / pi_old); pi_old is a constant, so the gradient is the same, and the value is 0 on-policy.
    `clipped` marks the tokens whose weight was clipped."""

    low: NonNegative | None = None
    """The lower bound is 1 - low. None: no lower bound, as in the paper's runs."""
    high: NonNegative | None = 0.28
    """The upper bound is 1 + high. None: no upper bound."""

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        ratio = importance_ratio(log_ratio, mask).detach()
        advantages = torch.where(mask, advantages, 0.0)
        lower = 0.0 if self.low is None else 1 - self.low
        upper = torch.inf if self.high is None else 1 + self.high
        weight = ratio.clamp(lower, upper)
        objective = weight * advantages * torch.where(mask, log_ratio, 0.0)
        return Surrogate(objective, (weight != ratio) & (advantages != 0))
