"""Pure functions shared by the parts. N responses, T token slots.

Masked slots may hold any value (NaN, inf, 1e6). They are replaced with `torch.where` before any
arithmetic, never multiplied by 0 after it: 0 * NaN is NaN, in the value and in the gradient."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from rlmods.types import RowFloats, RowInts, RowMask, TokenFloats, TokenInts, TokenMask

EQUAL_SCORES_RTOL = 2e-6
"""Relative difference up to which the scores of a group count as equal: about 16 float32 rounding
errors."""

MAX_EXPONENT = 80.0
"""float32 overflows at exp(88.7), and the zero gradient of a clipped token would be 0 * inf
there."""


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


def jensen_shannon(
    student: Float[Tensor, "n V"], teacher: Float[Tensor, "n V"], beta: float
) -> Float[Tensor, " n"]:
    """Return the generalised Jensen-Shannon divergence in nats, given log-probabilities (GKD,
    arXiv:2306.13649, equation 1):

        beta KL(P || M) + (1 - beta) KL(Q || M),   M = beta P + (1 - beta) Q

    P is the teacher's distribution, Q the student's. At the ends it is replaced by its limits up to
    scale: KL(P || Q) for beta = 0, since JSD / beta approaches it, and KL(Q || P) for beta = 1."""
    if beta in (0, 1):
        return kl_divergence(student, teacher) if beta else kl_divergence(teacher, student)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * kl_divergence(teacher, mixture) + (1 - beta) * kl_divergence(student, mixture)


def group_reduce(x: RowFloats, group: RowInts, how: str) -> RowFloats:
    """Reduce `x` over the rows of each group with `how` ("sum", "amax", "amin") and return the
    result on every row of the group."""
    ids, index = torch.unique(group, return_inverse=True)
    return x.new_zeros(len(ids)).scatter_reduce(0, index, x, how, include_self=False)[index]


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


def sampled_token(origin: TokenInts, group: RowInts) -> TokenInts:
    """Return a number for each slot, equal for slots of different rows if and only if they hold the
    same sampled token: rows of one group, in the same column, with the same origin
    (`Experience.origin`)."""
    _, tree = torch.unique(group, return_inverse=True)
    column = torch.arange(origin.shape[1], device=origin.device)
    token: Tensor = (tree[:, None] * (int(origin.max()) + 1) + origin) * origin.shape[1] + column
    return token


def mean_over_branches(
    x: RowFloats, mask: TokenMask, group: RowInts, origin: TokenInts | None
) -> tuple[TokenFloats, TokenInts]:
    """Return the mean of `x` over the rows that share each token, and their number; 0 where the
    mask is False.

    Rows with a false mask at the token are left out. `origin`: None if no rows share
    tokens, so that the mean is `x` itself."""
    if origin is None:
        return broadcast_to_tokens(x, mask), mask.long()
    token = sampled_token(origin, group)[mask]
    by_token = x[:, None].expand_as(mask)[mask]
    count = group_reduce(torch.ones_like(by_token), token, "sum")
    mean = group_reduce(by_token, token, "sum") / count
    means = x.new_zeros(mask.shape).masked_scatter(mask, mean)
    counts = torch.zeros_like(origin).masked_scatter(mask, count.long())
    return means, counts


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
    count = sum_over_ranks(mask.sum()).clamp(min=1)
    mean = sum_over_ranks(masked_sum(x, mask).sum()) / count
    centred = torch.where(mask, x - mean, 0.0)
    variance = sum_over_ranks(centred.square().sum()) / count
    return centred * (variance + eps).rsqrt()


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the sum of `x` over all ranks."""
    if dist.is_available() and dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x


def pack(lengths: RowInts, budget: int, group: RowInts | None = None) -> list[Tensor]:
    """Return row indices in chunks, longest first, with rows * longest row <= `budget` tokens in
    each; a longer row has its own chunk.

    With `group`, the rows of a group follow each other, in the order of their longest."""
    order = lengths.argsort(descending=True, stable=True)
    if group is not None:
        rank = torch.empty_like(order).index_copy(
            0, order, torch.arange(len(order), device=order.device)
        )
        order = (group_reduce(rank.double(), group, "amin") * len(order) + rank).argsort()
    counts: list[int] = []
    longest = 0
    for length in lengths[order].tolist():
        longest = max(longest, length)
        if counts and (counts[-1] + 1) * longest <= budget:
            counts[-1] += 1
        else:
            counts.append(1)
            longest = length
    return list(torch.split(order, counts))


def float32_linear(
    hidden: Float[Tensor, "... H"], weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None
) -> Float[Tensor, "... V"]:
    """Return `hidden weight^T + bias` in float32, also under autocast and with 16-bit weights."""
    if is_exact(hidden, weight):
        return linear(hidden, weight, bias)
    logits: Tensor = _Linear.apply(hidden, weight)  # type: ignore[no-untyped-call]
    return logits if bias is None else logits + bias.float()


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the data type of autocast on the device of a tensor, None without autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def is_exact(hidden: Tensor, weight: Tensor) -> bool:
    """Return True if a product with these weights is to be computed in their precision: neither
    autocast nor 16-bit weights."""
    return weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(
        hidden.device.type
    )


class _Linear(torch.autograd.Function):
    """`x W^T` with 16-bit products and float32 sums where the device has them, else in float32;
    also in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _matmul(x, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _matmul(gradient, weight).to(x.dtype) if needs_x else None,
            _matmul(rows.t(), x.flatten(0, -2)).to(weight.dtype) if needs_weight else None,
        )


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    with product_precision(a.device.type, exact=False):
        return a.float() @ b.float()


@contextmanager
def product_precision(device: str, exact: bool) -> Iterator[None]:
    """Compute products of float32 matrices exactly, or with 16-bit factors and float32 sums where
    the device has them: TF32 on GPUs, bfloat16 on processors. Without autocast in both cases."""
    before = torch.get_float32_matmul_precision()
    if not exact:
        torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def keyed_uniforms(count: int, *key: int | str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return `count` numbers in [0, 1) that depend only on `key`, not on process, platform or a
    global generator. With the same key, a longer sequence starts with the shorter one."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return _GENERATOR.restart(np.frombuffer(digest, dtype="<u8")).random(count)


class _KeyedGenerator(threading.local):
    """A generator for each thread that restarts with another key, which takes a third of the time
    of making one."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.start: Any = self.bits.state

    def restart(self, key: np.ndarray[Any, np.dtype[np.uint64]]) -> np.random.Generator:
        self.bits.state = self.start | {"state": self.start["state"] | {"key": key}}
        return self.generator


_GENERATOR = _KeyedGenerator()
