"""The advantage of REINFORCE++."""

from dataclasses import dataclass
from typing import Literal

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, center_by_group, masked_sum, rewards_to_go, whiten
from rlmods.settings.bounds import Fraction, bounded
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class ReinforcePP:
    """Globally whitened returns: A_t = whiten(G_t - b),  G_t = r_t + gamma G_{t+1}, mean 0 and
    variance 1 over the tokens trained on, of all ranks.

    REINFORCE++, arXiv:2501.03262. Without a baseline, r is the outcome on the last token plus -beta
    k1 on every token (kl.where=reward), so G_t is the outcome minus the penalty from t on; with
    baseline=group the paper has the KL as a loss of its own (kl=k2). The divisor is the standard
    deviation of the whole batch and not of one prompt, whose few rewards it would be correlated
    with. With baseline=group, a prompt whose rewards are all equal has G_t - b = 0 before
    whitening, which then shifts it by the mean over all tokens (0 if all responses have the same
    length)."""

    gamma: Fraction = 1.0
    """Discount per token, 0 to 1."""
    baseline: Literal["none", "group"] = "none"
    """none: b = 0. group: b is the mean of the total rewards R over the responses to one prompt
    (REINFORCE++ with baseline)."""

    @property
    def needs(self) -> AdvantageNeeds:
        return AdvantageNeeds(
            group=self.baseline == "group",
            normalizes_batch=True,
            credit="reward_to_go" if self.gamma == 1 else "token",
        )

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        return Credit(self.normalize(self.estimate(rewards, mask, group, values).advantages, mask))

    def estimate(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        """Return G_t - b."""
        advantages = rewards_to_go(rewards, mask, self.gamma)
        if self.baseline == "group":
            centred, _ = center_by_group(rewards, mask, group)
            # (G_t - R) + (R - b) instead of G_t - b: despite rounding, each term is exactly 0 where
            # it should be.
            total = broadcast_to_tokens(masked_sum(rewards, mask), mask)
            advantages = advantages - total + broadcast_to_tokens(centred, mask)
        return Credit(advantages)

    def normalize(self, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return the advantages with mean 0 and variance 1 over the true slots of all ranks."""
        return whiten(advantages, mask)
