"""Early stopping of an iteration's optimizer steps by KL."""

from __future__ import annotations

from rlmods.training.extensions.base import Extension


class EarlyStopping(Extension):
    """Skip the remaining optimizer steps of an iteration once the policy has moved too far:
    KL(pi_old || pi) of a minibatch above `1.5 * target_kl`, estimated by `r - 1 - log r` (as in
    Spinning Up's PPO)."""

    def __init__(self, target_kl: float) -> None:
        """
        Args:
            target_kl: nats per token.
        """
        self.target_kl = target_kl

    def should_stop(self) -> bool:
        kl_sum, num_tokens = self.loop.ranks.reduce(self.loop.kl_stats)
        return bool(kl_sum > 1.5 * self.target_kl * num_tokens)
