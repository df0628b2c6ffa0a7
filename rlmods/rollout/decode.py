"""Batched decoding with a growing key-value cache and keyed sampling.

P prompts, G samples each, R = P * G rows, L new tokens at most, V tokens in the vocabulary; H heads, S slots and D features in the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from rlmods.policy.base import Policy, eval_mode

FORWARD_COST = 256
"""Number of ids whose processing takes about as long as the overhead of a forward."""
COMPACT_BELOW = 7 / 8
"""Fraction of unfinished rows below which finished rows leave the batch. Copying the cache costs about as much as one step."""

OnStep = Callable[[int, int], None]
"""Called after every step with the number of rows that ended in it and the number of tokens it sampled."""


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
    """Entropy of the distribution at each of the first K steps, nats (`entropy`); arbitrary from `lengths` on."""


@torch.no_grad()  # not inference_mode: some models keep tensors made in forward, which training then uses
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
) -> Decoded:
    """Sample R / P responses to each prompt, with one prefill per prompt. The caller puts the modules in eval mode.

    `beginnings[p]`: number of ids at the beginning of prompt p that some other prompts begin with too. These, and what all prompts begin
    with, are processed once, where that saves more than `forward_cost` ids. `limits[p]`: maximum number of response tokens of prompt p.
    `uniforms[r, t]`: the only source of randomness of row r at step t.
    `stop` receives the last `window` tokens of a row and returns True if the row ends there. `num_entropies`: number of steps K of which
    entropies are returned.
    """
    device, steps = policy.device, max(limits)
    repeat = torch.arange(len(prompts), device=device).repeat_interleave(len(uniforms) // len(prompts))
    context = _Context(policy)
    logits = context.prefill(prompts, shared_levels(prompts, beginnings or [0] * len(prompts), forward_cost), steps)
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
    )
    rows = torch.arange(len(repeat), device=device)  # the row of `out` for each row of the batch
    active, num_active = torch.ones_like(out.stopped), len(repeat)
    for step in range(steps):
        tokens, logprobs = sample_tokens(logits, uniforms[rows, step], temperature=temperature, top_p=top_p, top_k=top_k)
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
            keep = active.nonzero().squeeze(-1)
            context.select(keep)
            rows, tokens, active = rows[keep], tokens[keep], active[keep]
        logits = context.append(tokens)
    return out


class _Context:
    """The tokens processed so far: cache, attention mask and next position of every row."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.cache_name = cache_argument(policy.model)

    def prefill(self, prompts: Sequence[Sequence[int]], shared: Sequence[list[int]], steps: int) -> Float[Tensor, "P V"]:
        """Process the prompts, with room for `steps` more tokens, and return their next logits. `shared`: `shared_levels`."""
        levels = [*shared, list(map(len, prompts))]
        if not has_growing_layers(new_cache(self.policy.model.config, 0)):
            levels = levels[-1:]
        widths = [max(b - a for a, b in zip(start, stop, strict=True)) for start, stop in pairwise([[0] * len(prompts), *levels])]
        nodes = dict.fromkeys(tuple(prompt[:length]) for prompt, length in zip(prompts, levels[0], strict=True))
        logits = self._start(list(nodes), sum(widths) + steps)
        for start, stop in pairwise(levels):
            index = {node: i for i, node in enumerate(nodes)}
            parents = {tuple(p[:j]): (index[tuple(p[:i])], p[i:j]) for p, i, j in zip(prompts, start, stop, strict=True)}
            nodes = dict.fromkeys(parents)
            self.select(torch.tensor([row for row, _ in parents.values()], device=self.policy.device))
            logits = self._go_on([rest for _, rest in parents.values()])
        index = {node: i for i, node in enumerate(nodes)}
        repeat = [index[tuple(prompt)] for prompt in prompts]
        if repeat != list(range(len(nodes))):
            self.select(rows := torch.tensor(repeat, device=self.policy.device))
            logits = logits[rows]
        return logits

    def _start(self, prompts: Sequence[Sequence[int]], slots: int) -> Float[Tensor, "P V"]:
        """Process the first tokens of the rows, and return the next logits."""
        ids, mask = _left_pad(prompts, self.policy.pad_id, self.policy.device)
        self.width = ids.shape[1]
        self.padded = not bool(mask.all())
        self.position = mask.sum(-1)
        self.mask = torch.cat([mask, mask.new_ones(len(prompts), slots - self.width)], dim=1)
        self.cache = new_cache(self.policy.model.config, slots)
        return self._forward(ids, (mask.cumsum(-1) - 1).clamp(min=0))

    def _go_on(self, rests: Sequence[Sequence[int]]) -> Float[Tensor, "R V"]:
        """Process different numbers of further tokens of the rows, and return the next logits."""
        ids, mask = _left_pad(rests, self.policy.pad_id, self.policy.device)
        position = (self.position[:, None] + mask.cumsum(-1) - 1).clamp(min=0)
        self.mask[:, self.width : self.width + ids.shape[1]] = mask
        self.width += ids.shape[1]
        self.padded = self.padded or not bool(mask.all())
        self.position = self.position + mask.sum(-1)
        return self._forward(ids, position)

    def select(self, rows: Int[Tensor, " R"]) -> None:
        self.cache.reorder_cache(rows)
        self.position, self.mask = self.position[rows], self.mask[rows]

    def append(self, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Process one more token per row and return the next logits."""
        # A finished row may still be in the batch: its positions must stay within the model's context.
        position = self.position.clamp(max=self.policy.context_length - 1)
        self.position, self.width = self.position + 1, self.width + 1
        return self._forward(tokens[:, None], position[:, None])

    def _forward(self, ids: Tensor, position: Tensor) -> Tensor:
        # Attention has a faster path without a mask. A purely recurrent model takes only the mask of the tokens that it processes.
        masked = self.padded and (self.cache_name == "past_key_values" or ids.shape[1] > 1)
        mask = self.mask[:, : self.width].long() if masked else None
        kwargs = {"attention_mask": mask, "position_ids": position, self.cache_name: self.cache, "use_cache": True}
        return self.policy.next_logits(ids, **kwargs)


def shared_levels(prompts: Sequence[Sequence[int]], beginnings: Sequence[int], forward_cost: int = FORWARD_COST) -> list[list[int]]:
    """Return the levels in which to process the prompts: for each level, up to which id of every prompt, below its length. What is equal up
    to there is processed once. The last level, of whole prompts, is not among them.

    Candidates are the ids with which all prompts begin, and `beginnings`; those are taken with which the fewest ids are processed, padding
    included. A level counts as `forward_cost` ids.
    """
    lengths = list(map(len, prompts))
    common = min(num_common(min(map(list, prompts)), max(map(list, prompts))), min(lengths) - 1)
    of_all = [common] * len(prompts)
    of_some = [min(beginning, length - 1) for beginning, length in zip(beginnings, lengths, strict=True)]
    of_both = [max(pair) for pair in zip(of_all, of_some, strict=True)]

    def num_processed(levels: list[list[int]]) -> int:
        blocks = pairwise([[0] * len(prompts), *levels, lengths])
        return len(levels) * forward_cost + sum(
            len({tuple(prompt[:j]) for prompt, j in zip(prompts, stop, strict=True)}) * max(j - i for i, j in zip(start, stop, strict=True))
            for start, stop in blocks
        )

    return min(([], [of_all], [of_some], [of_all, of_both]), key=num_processed)


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of ids with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def cache_argument(model: Any) -> str:
    """Return the name of the argument that takes the cache: `cache_params` in purely recurrent models (Mamba), else `past_key_values`."""
    parameters = inspect.signature(getattr(model.base_model, "forward", model.base_model)).parameters
    return "cache_params" if "cache_params" in parameters and "past_key_values" not in parameters else "past_key_values"


def _left_pad(prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids [P, W] and mask [P, W], True on prompt tokens."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


@contextmanager
def sampling_mode(module: nn.Module) -> Iterator[None]:
    """Put every submodule in eval mode (no dropout; gradient checkpointing would disable the cache), and restore each mode afterwards."""
    torch.clear_autocast_cache()  # autocast caches casts of weights made while sampling, which must not outlive the block
    try:
        with eval_mode(module):
            yield
    finally:
        torch.clear_autocast_cache()


def sample_tokens(
    logits: Float[Tensor, "R V"], uniform: Float[Tensor, " R"], *, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """Return one token per row, and its natural log-probability (float32) under the distribution it was sampled from.

    The inverse CDF of softmax(logits / temperature), truncated and renormalised, at `uniform` in [0, 1): one number determines one token,
    and tokens of probability 0 are never sampled. Temperature 0 is greedy; the log-probability is then that of temperature 1 without
    truncation, as the greedy distribution itself would always give log 1. Non-finite logits give a non-finite log-probability.
    """
    scores = logits.float()
    if temperature > 0:
        scores = truncate(scores / temperature, top_p=top_p, top_k=top_k)
    scores = scores - scores.amax(-1, keepdim=True)
    # In float32, tokens of probability below 6e-8 late in the vocabulary would get an interval of width 0. (MPS has no float64.)
    cdf = scores.exp().cumsum(-1, dtype=torch.float32 if scores.device.type == "mps" else torch.float64)
    total = cdf[:, -1:]
    if temperature > 0:
        # In float32 a uniform just below 1 rounds to 1, and searching for the total would return an index past the last token.
        point = torch.minimum(uniform[:, None].to(cdf) * total, torch.nextafter(total, torch.zeros_like(total)))
        tokens = torch.searchsorted(cdf, point, right=True).clamp(max=logits.shape[-1] - 1)
    else:
        tokens = scores.argmax(-1, keepdim=True)
    return tokens.squeeze(-1), (scores.gather(-1, tokens) - total.log()).squeeze(-1).float()


def entropy(logits: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, " R"]:
    """Return the entropy of softmax(logits / temperature), nats, without truncation. Temperature 0 counts as 1."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    return -(logprobs.exp() * logprobs).nansum(-1)  # 0 log 0 = 0


def truncate(scores: Float[Tensor, "R V"], *, top_p: float, top_k: int) -> Float[Tensor, "R V"]:
    """Set scores to -inf outside the `top_k` best tokens (0: all; ties stay), then outside the fewest whose probability reaches `top_p`."""
    if 0 < top_k < scores.shape[-1]:
        last = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < last, -torch.inf)
    if top_p < 1:
        ranked, order = scores.sort(stable=True, dim=-1, descending=True)
        probability = ranked.softmax(-1)
        preceding = probability.cumsum(-1) - probability  # total probability of the better tokens
        scores = scores.masked_fill(torch.empty_like(order, dtype=torch.bool).scatter(-1, order, preceding >= top_p), -torch.inf)
    return scores


def new_cache(config: PreTrainedConfig, slots: int) -> DynamicCache:
    """Return an empty cache for a model of this configuration, for at most `slots` tokens per row.

    Full-attention layers get a `GrowingLayer`. A model with any other kind of layer (sliding window, recurrent) keeps the stock layers.
    """
    cache = DynamicCache(config=config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [GrowingLayer(slots) for _ in cache.layers]
    return cache


def has_growing_layers(cache: DynamicCache) -> bool:
    """Return whether all layers attend to all tokens, wherever there is padding between them."""
    return all(isinstance(layer, GrowingLayer) for layer in cache.layers)


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """`DynamicLayer` that does not copy all states for every token: `keys` and `values` are views of buffers that double, up to `slots`."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.buffers: list[Tensor] = []
        self.is_initialized: bool = False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append states [R, H, S', D] and return all states so far, [R, H, S + S', D] each."""
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if not self.buffers or end > self.buffers[0].shape[-2]:
            self._grow(end)
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by row `beam_idx[i]`; the number of rows may change. One copy, with room for more tokens."""
        if self.is_initialized:
            length = self.keys.shape[-2]
            self._grow(length + 1, beam_idx)
            self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)

    def _grow(self, needed: int, rows: Tensor | None = None) -> None:
        size = max(needed, min(2 * needed, self.slots))
        self.buffers = [_copy_to_buffer(states, size, rows) for states in (self.keys, self.values)]


def _copy_to_buffer(states: Tensor, size: int, rows: Tensor | None) -> Tensor:
    _, heads, length, features = states.shape
    buffer = states.new_empty(len(states) if rows is None else len(rows), heads, size, features)
    if rows is None:
        buffer[:, :, :length] = states
    else:
        torch.index_select(states, 0, rows.to(states.device), out=buffer[:, :, :length])
    return buffer
