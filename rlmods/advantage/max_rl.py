"""The advantage of MaxRL."""

from dataclasses import dataclass

import torch

from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds
from rlmods.ops import (
    broadcast_to_tokens,
    center_by_group,
    group_reduce,
    masked_sum,
    sum_over_ranks,
)
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class MaxRL:
    """Maximum-likelihood advantage: A_i = (R_i - mean(R)) / mean(R) over the responses to one
    prompt, on every token of the response; 0 for a prompt whose mean reward is 0.

    MaxRL, arXiv:2602.02710, algorithm 1. With rewards of 0 and 1, the expected gradient is the
    gradient of sum_{k < G} pass@k / k, the first G - 1 terms of the expansion of log P(success)
    (the estimator without the baseline -1 has G terms); the plain policy gradient is the first
    term. Rewards must not be negative: the mean would not be a probability, and A would have no
    bound.

    Raises UserError for a negative reward."""

    needs = AdvantageNeeds(group=True, nonnegative=True, normalizes_rewards=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        score = masked_sum(rewards, mask)
        # on all ranks, so that all of them stop
        num_negative = int(sum_over_ranks((score < 0).sum()))
        if num_negative:
            raise UserError(
                f"advantage=max_rl divides by the mean reward of a prompt, but {num_negative} "
                "rewards are negative: "
                "type reward=accuracy, whose rewards are 0 and 1, or advantage=group_norm"
            )
        centred, count = center_by_group(rewards, mask, group)
        mean = group_reduce(score, group, "sum") / count.clamp(min=1)
        divisor = torch.where(mean > 0, mean, 1.0)
        advantage = torch.where(mean > 0, centred / divisor, 0.0)
        return Credit(broadcast_to_tokens(advantage, mask))
