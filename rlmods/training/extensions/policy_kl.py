"""KL divergence between the policies before and after optimizer steps: early stopping, and the
metric of an iteration."""

import torch

from rlmods.training.extensions.base import Extension
from rlmods.types import Experience


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


class UpdateKL(Extension):
    """Log `train/kl_update`: KL(pi_old || pi) in nats per token after the last optimizer step of an
    iteration, estimated by `r - 1 - log r`. Ratios with an adaptive coefficient read it (PPO-KL,
    arXiv:1707.06347, equation 8)."""

    needs_old_logprobs = True

    def after_update(self, batch: Experience, num_fresh: int) -> None:
        loop = self.loop
        with loop.timer("score"):
            d = loop.scorer.score(batch, loop.policy).logprobs - batch.old_logprobs
        fresh = batch.mask & (batch.policy_version == loop.iteration)[:, None]
        d = torch.where(fresh, d, 0.0)
        loop.meter.mean("train/kl_update", d.exp() - 1 - d, fresh)
