"""The advantage of a tree of responses."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.ops import center_by_group, mean_over_branches
from rlmods.types import Credit, RowInts, TokenFloats, TokenInts, TokenMask


@dataclass(frozen=True)
class Tree:
    """Difference of values in the tree of responses to one prompt: A_t = V(s) - V(parent of s) on
    every token t of the segment s, where V(s) is the mean reward of the responses that share s, and
    V of the prompt the mean reward of all.

    A segment is a longest run of tokens that the same responses share. The credits of a response's
    segments sum to R_i - mean(R), as no other response has its last segment. Without branches a
    response is one segment and this equals advantage=group_mean. V is a mean over leaves: in a full
    tree, whose branches at a point all have the same number of leaves, it is the mean over these
    branches, sampled from the policy after the same tokens; else a branch counts by its number of
    leaves.

    The idea: process rewards from Monte Carlo roll-outs (Math-Shepherd, arXiv:2312.08935; VinePPO,
    arXiv:2410.01679), here from the responses that are trained on. A shared token is a token of
    each row that shares it, as in advantage=branch_hard: with aggregation=token_mean its gradient
    is weighted by their number."""

    needs: ClassVar[AdvantageNeeds] = AdvantageNeeds(group=True, branches=True, credit="token")

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
        origin: TokenInts | None = None,
    ) -> Credit:
        centred, _ = center_by_group(rewards, mask, group)
        value, sharing = mean_over_branches(centred, mask, group, origin)
        advantages = torch.zeros_like(value)
        # Towards the end of a response fewer and fewer responses share its tokens, so that their
        # number identifies the segment.
        segment = torch.zeros_like(group)
        parent_value = torch.zeros_like(centred)
        segment_value = torch.zeros_like(centred)
        for t in range(mask.shape[1]):
            begins = mask[:, t] & (sharing[:, t] != segment)
            parent_value = torch.where(begins, segment_value, parent_value)
            segment_value = torch.where(begins, value[:, t], segment_value)
            segment = torch.where(begins, sharing[:, t], segment)
            advantages[:, t] = torch.where(mask[:, t], segment_value - parent_value, 0.0)
        return Credit(advantages)
