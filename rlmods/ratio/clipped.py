"""Hard clipping: PPO, DAPO's clip-higher, dual clip, GSPO and GSPO-token."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from rlmods.needs import RatioNeeds
from rlmods.ops import importance_ratio, masked_mean
from rlmods.settings.bounds import ABOVE_1, Fraction, NonNegativeLimit, bounded
from rlmods.types import Surrogate, TokenFloats, TokenMask

Level = Literal["token", "sequence", "sequence_token"]


@dataclass(frozen=True)
@bounded("ratio")
class Clipped:
    """Clipped surrogate: min(r A, clip(r, 1 - low, 1 + high) A). No gain for moving pi past the
    bounds in the direction of A.

    low == high is PPO, arXiv:1707.06347, equation 7; low < high is DAPO, arXiv:2503.14476, equation
    10. `level` defines r."""

    low: Fraction = 0.2
    """The lower bound is 1 - low; 0 to 1."""
    high: NonNegativeLimit = 0.2
    """The upper bound is 1 + high."""
    level: Level = "token"
    """token: each token's own ratio. sequence: the geometric mean of a response's ratios (GSPO,
    arXiv:2507.18071, equation 7). sequence_token: the same value, with token t's gradient scaled by
    token t's own advantage (GSPO-token, equation 14)."""
    dual: Annotated[float, ABOVE_1] | None = None
    """Lower bound dual * A of the objective where A < 0 (dual clip, arXiv:1912.09729).
    None: no lower bound."""

    @property
    def needs(self) -> RatioNeeds:
        return RatioNeeds(level=self.level)

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        ratio = self.ratio(log_ratio, mask)
        advantages = torch.where(mask, advantages, 0.0)
        unclipped = ratio * advantages
        clipped = ratio.clamp(1 - self.low, 1 + self.high) * advantages
        objective = torch.minimum(unclipped, clipped)
        is_clipped = clipped < unclipped
        if self.dual is not None:
            is_bounded = (advantages < 0) & (objective < self.dual * advantages)
            objective = torch.where(is_bounded, self.dual * advantages, objective)
            is_clipped = is_clipped | is_bounded
        return Surrogate(objective, is_clipped)

    def ratio(self, log_ratio: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return r at `level`; 1 in masked slots."""
        if self.level == "token":
            return importance_ratio(log_ratio, mask)
        mean = masked_mean(log_ratio, mask)[:, None].expand_as(log_ratio)
        sequence = importance_ratio(mean, mask)
        if self.level == "sequence":
            return sequence
        token = torch.where(mask, log_ratio, 0.0)
        return sequence.detach() * (token - token.detach()).exp()
