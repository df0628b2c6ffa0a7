"""The advantage of REINFORCE++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.ops import deviation, masked_sum, rewards_to_go, spread, whiten
from rlmods.types import Credit


@dataclass(frozen=True)
class ReinforcePP:
    """A_t = whiten(G_t - b),  G_t = r_t + gamma G_{t+1}: mean 0 and variance 1 over the tokens of all responses on all ranks.

    REINFORCE++, arXiv:2501.03262. r holds the outcome on the last token and -beta k1 on every one (kl.where=reward), so that G_t is the
    outcome less the penalty still to come. Dividing by the deviation of the whole batch, and not by each prompt's own, keeps it from being
    correlated with the prompt's few rewards. With b, a prompt whose rewards are equal has G_t - b = 0, which whitening then moves by
    the mean over all tokens: by 0 where all responses are equally long."""

    gamma: float = 1.0
    """Discount per token, 0 to 1."""
    baseline: Literal["none", "group"] = "none"
    """none: b = 0. group: b is the mean of the total rewards R over the responses to one prompt (REINFORCE++ with baseline)."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"ReinforcePP: gamma must be between 0 and 1, got {self.gamma}")
        if self.baseline not in ("none", "group"):
            raise ValueError(f"ReinforcePP: baseline must be none or group, got {self.baseline!r}")

    @property
    def needs_group(self) -> bool:
        return self.baseline == "group"

    def __call__(
        self,
        rewards: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        group: Int[Tensor, " N"],
        values: Float[Tensor, "N T"] | None = None,
    ) -> Credit:
        advantages = rewards_to_go(rewards, mask, self.gamma)
        if self.needs_group:
            centred, _ = deviation(rewards, mask, group)
            # (G_t - R) + (R - b) and not G_t - b: both are exactly 0 where they should be.
            advantages = advantages - spread(masked_sum(rewards, mask), mask) + spread(centred, mask)
        return Credit(whiten(advantages, mask))
