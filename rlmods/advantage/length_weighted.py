"""The advantage of OPO."""

from dataclasses import dataclass

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, constant_group, group_reduce, masked_sum
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class LengthWeighted:
    """Length-weighted group baseline: A_i = R_i - sum_j |y_j| R_j / sum_j |y_j| over the responses
    to one prompt, on every token of the response.

    OPO, arXiv:2505.23585, equation 8: the baseline that minimises the variance of the policy
    gradient, if the squared norm of the gradient of log pi(y) is proportional to the length |y|. A
    response without a reward is left out of the baseline and gets 0. Exactly 0 in groups of equal
    rewards."""

    needs = AdvantageNeeds(group=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        score = masked_sum(rewards, mask)
        scored = mask.any(1)
        length = mask.sum(1).to(score.dtype)  # 0 for a response without a reward
        total_length = group_reduce(length, group, "sum").clamp(min=1)
        baseline = group_reduce(length * score, group, "sum") / total_length
        differs = scored & ~constant_group(score, scored, group)
        advantage = torch.where(differs, score - baseline, 0.0)
        return Credit(broadcast_to_tokens(advantage, mask))
