"""The advantage of a tree of responses."""

from dataclasses import dataclass

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, center_by_group, group_reduce
from rlmods.types import Credit, RowFloats, RowInts, TokenFloats, TokenInts, TokenMask


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

    needs = AdvantageNeeds(group=True, branches=True, credit="token")

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


def mean_over_branches(
    x: RowFloats, mask: TokenMask, group: RowInts, origin: TokenInts | None
) -> tuple[TokenFloats, TokenInts]:
    """Return the mean of `x` over the rows that share each token, and their number; 0 where the
    mask is False.

    Rows with a false mask at the token are left out. `origin`: `Experience.origin`; None if no rows
    share tokens, so that the mean is `x` itself."""
    if origin is None:
        return broadcast_to_tokens(x, mask), mask.long()
    # rows of one group share a token in a column if they have the same origin there
    _, tree = torch.unique(group, return_inverse=True)
    column = torch.arange(origin.shape[1], device=origin.device)
    by_origin = tree[:, None] * (int(origin.max()) + 1) + origin
    token = (by_origin * origin.shape[1] + column)[mask]
    by_token = x[:, None].expand_as(mask)[mask]
    count = group_reduce(torch.ones_like(by_token), token, "sum")
    mean = group_reduce(by_token, token, "sum") / count
    means = x.new_zeros(mask.shape).masked_scatter(mask, mean)
    counts = torch.zeros_like(origin).masked_scatter(mask, count.long())
    return means, counts
