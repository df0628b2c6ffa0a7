"""Pure functions shared by the parts. N responses, T token slots.

Masked slots may hold any value (NaN, inf, 1e6). They are replaced with `torch.where` before any
arithmetic, never multiplied by 0 after it: 0 * NaN is NaN, in the value and in the gradient."""

import hashlib
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from rlmods.types import RowFloats, RowInts, RowMask, TokenFloats, TokenMask

EQUAL_SCORES_RTOL = 2e-6
"""Relative difference up to which the scores of a group count as equal: about 16 float32 rounding
errors."""

EQUAL = 1e-5
"""Difference up to which numbers of tokens count as equal that two forwards may round differently,
as those of equal contexts in different microbatches."""

MAX_EXPONENT = 80.0
"""float32 overflows at exp(88.7), and the zero gradient of a clipped token would be 0 * inf
there."""

MAX_LOGPROB = -1e-7
"""Upper bound of the log-probabilities from which `binary_divergence` is computed: log(1 - p) is
-inf at p = 1."""


MAX_PADDED = 4
"""Largest number of tokens with padding and repeated prompts in a microbatch of packed rows, by the
number that is computed: memory of attention grows with them, a tenth of all else."""


def masked_sum(x: TokenFloats, mask: TokenMask) -> RowFloats:
    """Return the sum over each row's true slots."""
    return torch.where(mask, x, 0.0).sum(1)


def masked_mean(x: TokenFloats, mask: TokenMask) -> RowFloats:
    """Return the mean over each row's true slots; 0 for a row without any."""
    return masked_sum(x, mask) / mask.sum(1).clamp(min=1)


def importance_ratio(log_ratio: TokenFloats, mask: TokenMask) -> TokenFloats:
    """Return r = pi / pi_old per token; 1 in masked slots."""
    return torch.where(mask, log_ratio, 0.0).clamp(max=MAX_EXPONENT).exp()


def scatter(x: Float[Tensor, " n"], mask: TokenMask) -> TokenFloats:
    """Put the values of the true slots, row by row, back into [N, T], 0 elsewhere. The first
    column, which nothing precedes, has none."""
    scored = mask.clone()
    scored[:, 0] = False
    return torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_scatter(scored, x)


def kl_divergence(p: Float[Tensor, "n V"], q: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    """Return KL(P || Q) = sum_v P_v (log P_v - log Q_v) in nats, given log P and log Q; tokens with
    P_v = 0 contribute 0."""
    probabilities = p.exp()
    return (probabilities * torch.where(probabilities > 0, p - q, 0.0)).sum(-1)


def binary_divergence(kind: Literal["tv", "kl"], old: TokenFloats, d: TokenFloats) -> TokenFloats:
    """Return the divergence of the two events "the sampled token" and "any other" between a
    distribution with log-probabilities `old` and one with `old + d`: total variation |p - p_old|,
    or KL(p_old || p) in nats."""
    new = (old + d).clamp(max=0.0)  # rounding must not make a probability exceed 1
    if kind == "tv":
        return (new.exp() - old.exp()).abs()
    old = old.clamp(max=MAX_LOGPROB)
    new = new.clamp(max=MAX_LOGPROB)
    log_other_old = (-torch.expm1(old)).log()
    log_other_new = (-torch.expm1(new)).log()
    return old.exp() * (old - new) - torch.expm1(old) * (log_other_old - log_other_new)


def group_reduce(x: RowFloats, group: RowInts, how: str) -> RowFloats:
    """Reduce `x` over the rows of each group with `how` ("sum", "amax", "amin") and return the
    result on every row of the group."""
    index = group_index(group)
    of_group = torch.zeros_like(x)
    if how == "sum" and x.device.type == "cuda":
        # scatter_reduce adds in the order of arrival there
        return of_group.index_put((index,), x, accumulate=True)[index]
    return of_group.scatter_reduce(0, index, x, how, include_self=False)[index]


def group_index(group: RowInts) -> RowInts:
    """Return the rank of each id among the distinct ids. `torch.unique` would wait for a GPU: the
    size of its result depends on the values."""
    order = group.argsort(stable=True)
    ordered = group[order]
    begins = torch.zeros_like(ordered)
    begins[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter(0, order, begins.cumsum(0))


def constant_group(score: RowFloats, scored: RowMask, group: RowInts) -> RowMask:
    """Return True on the rows of groups whose scored members all have the same score, among them
    groups with one or no scored member."""
    high = group_reduce(torch.where(scored, score, -torch.inf), group, "amax")
    low = group_reduce(torch.where(scored, score, torch.inf), group, "amin")
    return high - low <= EQUAL_SCORES_RTOL * torch.maximum(high.abs(), low.abs())


def center_by_group(
    rewards: TokenFloats, mask: TokenMask, group: RowInts
) -> tuple[RowFloats, RowFloats]:
    """Return R_i - mean(R over the group of i), and the number of scored members of the group.

    R_i is the sum of a row's rewards. A row without a true slot is unscored: it is left out of the
    mean and gets 0. The result is exactly 0 in groups of equal scores."""
    score = masked_sum(rewards, mask)
    scored = mask.any(1)
    count = group_reduce(scored.to(score.dtype), group, "sum")
    total = group_reduce(torch.where(scored, score, 0.0), group, "sum")
    centred = score - total / count.clamp(min=1)
    return torch.where(scored & ~constant_group(score, scored, group), centred, 0.0), count


def broadcast_to_tokens(x: RowFloats, mask: TokenMask) -> TokenFloats:
    """Return a row's value on each of its true slots, 0 elsewhere."""
    return torch.where(mask, x[:, None], 0.0)


def differs_by_token(x: TokenFloats, mask: TokenMask) -> RowMask:
    """Return True for rows whose true slots have different values; float32 rounding is no
    difference."""
    high = torch.where(mask, x, -torch.inf).amax(1)
    low = torch.where(mask, x, torch.inf).amin(1)
    return mask.any(1) & (high - low > 1e-5 * torch.maximum(high.abs(), low.abs()))


def rewards_to_go(
    rewards: TokenFloats, mask: TokenMask, gamma: float | TokenFloats = 1.0
) -> TokenFloats:
    """Return G_t = r_t + gamma_t G_{t+1} over each row's true slots, skipping the others; 0
    elsewhere."""
    returns = torch.zeros_like(rewards)
    later = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        discount = gamma[:, t] if isinstance(gamma, Tensor) else gamma
        later = torch.where(mask[:, t], rewards[:, t] + discount * later, later)
        returns[:, t] = torch.where(mask[:, t], later, 0.0)
    return returns


def whiten(x: TokenFloats, mask: TokenMask, eps: float = 1e-8) -> TokenFloats:
    """Return (x - mean) / sqrt(var + eps) with the population moments of the true slots of all
    ranks; 0 elsewhere and for a single slot."""
    centred, count = center(x, mask)
    variance = sum_over_ranks(centred.square().sum()) / count
    return centred * (variance + eps).rsqrt()


def center(x: TokenFloats, mask: TokenMask) -> tuple[TokenFloats, Tensor]:
    """Return x - mean over the true slots of all ranks, 0 elsewhere, and the number of these slots,
    at least 1."""
    count = sum_over_ranks(mask.sum()).clamp(min=1)
    mean = sum_over_ranks(masked_sum(x, mask).sum()) / count
    return torch.where(mask, x - mean, 0.0), count


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the sum of `x` over all ranks."""
    if dist.is_available() and dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x


def largest(x: TokenFloats, mask: TokenMask, count: Tensor, tolerance: float = 0.0) -> TokenMask:
    """Return True on the `count` largest true slots of all ranks, in float32, and on those that are
    at most `tolerance` below the smallest of them."""
    bits = x.float().view(torch.int32).long()
    keys = _in_order(bits)
    low = torch.full_like(count, -(2**31))
    high = torch.full_like(count, 2**31 - 1)
    for _ in range(32):  # halve the interval that holds the smallest of them
        middle = high - (high - low) // 2
        reaches = sum_over_ranks((mask & (keys >= middle)).sum()) >= count
        low = torch.where(reaches, middle, low)
        high = torch.where(reaches, high, middle - 1)
    smallest = _in_order(low).to(torch.int32).view(torch.float32)
    return mask & ((keys >= low) | (x >= smallest - tolerance))


def _in_order(bits: Tensor) -> Tensor:
    """Return integers in the order of the float32 numbers with these bits, or the bits again: below
    0, larger bits are smaller numbers."""
    return torch.where(bits < 0, bits ^ (2**31 - 1), bits)


def pack(
    lengths: RowInts,
    budget: int,
    group: RowInts | None = None,
    computed: Callable[[RowInts], tuple[RowInts, RowInts]] | None = None,
) -> list[Tensor]:
    """Return row indices in chunks, longest first, with rows * longest row <= `budget` tokens in
    each; a longer row has its own chunk.

    With `group`, the rows of a group follow each other, in the order of their longest. With
    `computed`, the budget is on the tokens that a forward of packed rows computes: it maps an order
    of the rows to their number of tokens at the beginning of a chunk, and after the row before.
    Attention is computed on whole rows: with padding a chunk has at most `MAX_PADDED` * budget
    tokens."""
    order = lengths.argsort(descending=True, stable=True)
    if group is not None:
        rank = torch.empty_like(order).index_copy(
            0, order, torch.arange(len(order), device=order.device)
        )
        order = (group_reduce(rank.double(), group, "amin") * len(order) + rank).argsort()
    columns = [lengths[order], torch.zeros_like(order), torch.zeros_like(order)]
    padded_budget = budget
    if computed is not None:
        columns[1:] = computed(order)
        padded_budget = MAX_PADDED * budget
    counts: list[int] = []
    longest = 0
    num_tokens = 0
    for length, alone, added in torch.stack(columns, 1).tolist():
        longest = max(longest, length)
        num_tokens += added
        if counts and (counts[-1] + 1) * longest <= padded_budget and num_tokens <= budget:
            counts[-1] += 1
        else:
            counts.append(1)
            longest = length
            num_tokens = alone
    return list(torch.split(order, counts))


def keyed_uniforms(count: int, *key: int | str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return `count` numbers in [0, 1) that depend only on `key`, not on process, platform or a
    global generator. With the same key, a longer sequence starts with the shorter one."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    bits = np.random.Philox(key=np.frombuffer(digest, dtype="<u8"))
    return np.random.Generator(bits).random(count)
