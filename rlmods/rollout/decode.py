"""Batched decoding with a growing key-value cache and keyed sampling.

P prompts, G samples each, R = P * G rows, L new tokens at most, V tokens in the vocabulary; H
heads, S slots and D features in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rlmods.policy.base import Policy, eval_mode
from rlmods.rollout.cache import FORWARD_COST, CachedRows, Past

COMPACT_BELOW = 7 / 8
"""Fraction of unfinished rows below which finished rows leave the batch. Copying the cache costs
about as much as one step."""

OnStep = Callable[[int, int], None]
"""Called after every step with the number of rows that ended in it and the number of tokens it
sampled."""


@dataclass
class Decoded:
    """R rows in the order of the prompts, the samples of a prompt next to each other."""

    tokens: Int[Tensor, "R L"]
    """Sampled ids; arbitrary from `lengths` on."""
    logprobs: Float[Tensor, "R L"]
    """Natural log-probability of each under the distribution it was sampled from."""
    lengths: Int[Tensor, " R"]
    """Number of sampled tokens, including EOS."""
    stopped: Bool[Tensor, " R"]
    """True if EOS or a stop string ended the row, False if the limit did."""
    entropies: Float[Tensor, "R K"]
    """Entropy of the distribution at each of the first K steps, nats (`entropy`); arbitrary from
    `lengths` on."""
    pasts: list[Past | None]
    """What was processed of a prompt and its sampled tokens but the last; None unless wanted
    (`keep`), and if it cannot be kept."""


# not inference_mode: some models keep tensors made in forward, which training then uses
@torch.no_grad()
def decode(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    uniforms: Float[Tensor, "R L"],
    *,
    beginnings: Sequence[int] | None = None,
    forward_cost: int = FORWARD_COST,
    temperature: float,
    top_p: float,
    top_k: int,
    stop: Callable[[list[int]], bool] | None = None,
    window: int = 0,
    on_step: OnStep | None = None,
    num_entropies: int = 0,
    pasts: list[Past | None] | None = None,
    keep: Sequence[bool] | None = None,
) -> Decoded:
    """Sample R / P responses to each prompt, with one prefill per prompt. The caller puts the
    modules in eval mode.

    `beginnings[p]`: number of ids at the beginning of prompt p that some other prompts begin with
    too. These, and what all prompts begin with, are processed once, where that saves more than
    `forward_cost` ids. `limits[p]`: maximum number of response tokens of prompt p. `uniforms[r,
    t]`: the only source of randomness of row r at step t. `stop` receives the last `window` tokens
    of a row and returns True if the row ends there. `num_entropies`: number of steps K of which
    entropies are returned. `pasts[p]`: what was processed of a row with which prompt p has ids in
    common; the list is emptied, so that the memory is free while tokens are sampled. `keep[p]`:
    return what is processed of the rows of prompt p (`Decoded.pasts`)."""
    device, steps = policy.device, max(limits)
    repeat = torch.arange(len(prompts), device=device).repeat_interleave(
        len(uniforms) // len(prompts)
    )
    context = CachedRows(policy)
    pasts = pasts or [None] * len(prompts)
    logits = context.prefill(
        prompts,
        steps,
        beginnings=beginnings or [0] * len(prompts),
        pasts=pasts,
        forward_cost=forward_cost,
    )
    pasts.clear()
    if len(repeat) > len(prompts):
        context.select(repeat)
        logits = logits[repeat]
    limit, uniforms = torch.tensor(limits, device=device)[repeat], uniforms.to(device)
    eos = torch.tensor(sorted(policy.eos_ids), device=device)
    out = Decoded(
        tokens=torch.zeros(len(repeat), steps, dtype=torch.long, device=device),
        logprobs=torch.zeros(len(repeat), steps, device=device),
        lengths=torch.zeros(len(repeat), dtype=torch.long, device=device),
        stopped=torch.zeros(len(repeat), dtype=torch.bool, device=device),
        entropies=torch.zeros(len(repeat), min(num_entropies, steps), device=device),
        pasts=[None] * len(repeat),
    )

    def keep_pasts(finished: Tensor) -> None:
        """Keep what was processed of these rows of the batch."""
        for i, row in zip(finished.tolist(), rows[finished].tolist(), strict=True):
            prompt = row * len(prompts) // len(repeat)
            if keep is not None and keep[prompt] and context.keeps:
                ids = [*prompts[prompt], *out.tokens[row, : out.lengths[row] - 1].tolist()]
                out.pasts[row] = context.past(i, ids)

    rows = torch.arange(len(repeat), device=device)  # the row of `out` for each row of the batch
    active, num_active = torch.ones_like(out.stopped), len(repeat)
    for step in range(steps):
        tokens, logprobs = sample_tokens(
            logits, uniforms[rows, step], temperature=temperature, top_p=top_p, top_k=top_k
        )
        out.tokens[rows, step], out.logprobs[rows, step] = tokens, logprobs
        if step < num_entropies:
            out.entropies[rows, step] = entropy(logits, temperature)
        out.lengths[rows] += active
        ends = (tokens[:, None] == eos).any(-1)
        if stop is not None:
            tails = out.tokens[rows[active], max(0, step + 1 - window) : step + 1].tolist()
            ends[active] |= torch.tensor([stop(tail) for tail in tails], device=device)
        out.stopped[rows] |= ends & active
        active = active & ~ends & (step + 1 < limit[rows])
        num_sampled, num_active = num_active, int(active.sum())
        if on_step is not None:
            on_step(num_sampled - num_active, num_sampled)
        if num_active == 0:
            break
        if num_active <= COMPACT_BELOW * len(rows):
            keep_pasts((~active).nonzero().squeeze(-1))
            left = active.nonzero().squeeze(-1)
            context.select(left)
            rows, tokens, active = rows[left], tokens[left], active[left]
        logits = context.append(tokens)
    keep_pasts(torch.arange(len(rows), device=device))
    return out


@contextmanager
def sampling_mode(module: nn.Module) -> Iterator[None]:
    """Put every submodule in eval mode (no dropout; gradient checkpointing would disable the
    cache), and restore each mode afterwards."""
    # autocast caches casts of weights made while sampling, which must not outlive the block
    torch.clear_autocast_cache()
    try:
        with eval_mode(module):
            yield
    finally:
        torch.clear_autocast_cache()


def sample_tokens(
    logits: Float[Tensor, "R V"],
    uniform: Float[Tensor, " R"],
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """Return one token per row, and its natural log-probability (float32) under the distribution it
    was sampled from.

    The inverse CDF of softmax(logits / temperature), truncated and renormalised, at `uniform` in
    [0, 1): one number determines one token, and tokens of probability 0 are never sampled.
    Temperature 0 is greedy; the log-probability is then that of temperature 1 without truncation,
    as the greedy distribution itself would always give log 1. Non-finite logits give a non-finite
    log-probability."""
    scores = logits.float()
    if temperature > 0:
        scores = truncate(scores / temperature, top_p=top_p, top_k=top_k)
    scores = scores - scores.amax(-1, keepdim=True)
    # In float32, tokens of probability below 6e-8 late in the vocabulary would get an interval of
    # width 0. (MPS has no float64.)
    cdf = scores.exp().cumsum(
        -1, dtype=torch.float32 if scores.device.type == "mps" else torch.float64
    )
    total = cdf[:, -1:]
    if temperature > 0:
        # In float32 a uniform just below 1 rounds to 1, and searching for the total would return an
        # index past the last token.
        point = torch.minimum(
            uniform[:, None].to(cdf) * total, torch.nextafter(total, torch.zeros_like(total))
        )
        tokens = torch.searchsorted(cdf, point, right=True).clamp(max=logits.shape[-1] - 1)
    else:
        tokens = scores.argmax(-1, keepdim=True)
    return tokens.squeeze(-1), (scores.gather(-1, tokens) - total.log()).squeeze(-1).float()


def entropy(logits: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, " R"]:
    """Return the entropy of softmax(logits / temperature), nats, without truncation. Temperature 0
    counts as 1."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    return -(logprobs.exp() * logprobs).nansum(-1)  # 0 log 0 = 0


def truncate(scores: Float[Tensor, "R V"], *, top_p: float, top_k: int) -> Float[Tensor, "R V"]:
    """Set scores to -inf outside the `top_k` best tokens (0: all; ties stay), then outside the
    fewest whose probability reaches `top_p`."""
    if 0 < top_k < scores.shape[-1]:
        last = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < last, -torch.inf)
    if top_p < 1:
        ranked, order = scores.sort(stable=True, dim=-1, descending=True)
        probability = ranked.softmax(-1)
        preceding = probability.cumsum(-1) - probability  # total probability of the better tokens
        scores = scores.masked_fill(
            torch.empty_like(order, dtype=torch.bool).scatter(-1, order, preceding >= top_p),
            -torch.inf,
        )
    return scores
