"""The batch-mean baseline."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, masked_sum, sum_over_ranks
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Credit, RowFloats, RowInts, RowMask, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class BatchMean:
    """Batch-mean baseline: A_i = (R_i - mean(R)) / s over all responses that are sampled at once,
    of all prompts and all ranks, on every token of the response. s is 1, or with scale=batch
    std(R) + eps.

    REINFORCE with a constant baseline, Williams 1992, section 4. It needs no second response to a
    prompt. Easy prompts get positive and hard prompts negative advantages, which a baseline by
    prompt (advantage=group_mean) removes."""

    scale: Literal["none", "batch"] = "none"
    """none: do not divide. batch: divide by the standard deviation."""
    eps: Positive = 1e-6
    """Added to the standard deviation."""

    @property
    def needs(self) -> AdvantageNeeds:
        return AdvantageNeeds(normalizes_rewards=self.scale == "batch")

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        score = masked_sum(rewards, mask)
        scored = mask.any(1)
        mean, std = batch_moments(score, scored)
        advantage = score - mean
        if self.scale == "batch":
            advantage = advantage / (std + self.eps)
        return Credit(broadcast_to_tokens(advantage, mask))


def batch_moments(score: RowFloats, scored: RowMask) -> tuple[Tensor, Tensor]:
    """Return the mean and the unbiased standard deviation of the scored rows of all ranks; 0 for a
    single row."""
    count = sum_over_ranks(scored.sum())
    mean = sum_over_ranks(torch.where(scored, score, 0.0).sum()) / count.clamp(min=1)
    centred = torch.where(scored, score - mean, 0.0)
    variance = sum_over_ranks(centred.square().sum()) / (count - 1).clamp(min=1)
    return mean, variance.sqrt()
