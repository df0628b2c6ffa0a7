"""What was processed of rows of ids: keys and values of every layer, attention mask and next
position.

P prompts or R rows; H heads, S slots and D features in the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from rlmods.policy.base import Policy

FORWARD_COST = 256
"""Number of ids whose processing takes about as long as the overhead of a forward."""


@dataclass(frozen=True)
class Past:
    """What was processed of a row, from which rows that begin with the same ids can go on."""

    ids: Sequence[int]
    """The T ids."""
    states: Sequence[tuple[Tensor, Tensor]]
    """Keys and values of each layer, [H, T, D]."""


class CachedRows:
    """The tokens processed so far: cache, attention mask and next position of every row."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.cache_name = cache_argument(policy.model)

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        beginnings: Sequence[int],
        pasts: Sequence[Past | None],
        forward_cost: int = FORWARD_COST,
    ) -> Float[Tensor, "P V"]:
        """Process the prompts, with room for `steps` more tokens, and return their next logits.
        Either goes on from `pasts`, or processes equal ids once (`shared_levels`), whichever
        processes fewer ids."""
        levels = shared_levels(prompts, beginnings, forward_cost)
        kept = [
            0 if past is None else min(num_common(past.ids, p), len(p) - 1)
            for past, p in zip(pasts, prompts, strict=True)
        ]
        rests = [prompt[start:] for prompt, start in zip(prompts, kept, strict=True)]
        if any(kept) and len(prompts) * max(map(len, rests)) < num_processed(
            prompts, levels, forward_cost
        ):
            self._restore(pasts, kept, max(kept) + max(map(len, rests)) + steps)
            return self._go_on(rests)
        return self._process(prompts, levels, steps)

    def _process(
        self, prompts: Sequence[Sequence[int]], shared: Sequence[list[int]], steps: int
    ) -> Float[Tensor, "P V"]:
        """Process the prompts from their beginnings on, what is equal up to each level of `shared`
        once."""
        levels = [*shared, list(map(len, prompts))]
        if not has_growing_layers(new_cache(self.policy.model.config, 0)):
            levels = levels[-1:]
        widths = [
            max(b - a for a, b in zip(start, stop, strict=True))
            for start, stop in pairwise([[0] * len(prompts), *levels])
        ]
        nodes = dict.fromkeys(
            tuple(prompt[:length]) for prompt, length in zip(prompts, levels[0], strict=True)
        )
        logits = self._start(list(nodes), sum(widths) + steps)
        for start, stop in pairwise(levels):
            index = {node: i for i, node in enumerate(nodes)}
            parents = {
                tuple(p[:j]): (index[tuple(p[:i])], p[i:j])
                for p, i, j in zip(prompts, start, stop, strict=True)
            }
            nodes = dict.fromkeys(parents)
            self.select(
                torch.tensor([row for row, _ in parents.values()], device=self.policy.device)
            )
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

    def _restore(self, pasts: Sequence[Past | None], kept: Sequence[int], slots: int) -> None:
        """Begin with what was kept of the rows: `kept[i]` ids of row i."""
        self.width = max(kept)
        self.position = torch.tensor(kept, device=self.policy.device)
        mask = (
            torch.arange(self.width, device=self.policy.device)
            >= self.width - self.position[:, None]
        )
        self.padded = not bool(mask.all())
        self.mask = torch.cat([mask, mask.new_ones(len(kept), slots - self.width)], dim=1)
        self.cache = new_cache(self.policy.model.config, slots)
        states = [None if past is None else past.states for past in pasts]
        for i, layer in enumerate(self.cache.layers):
            layer.restore([None if own is None else own[i] for own in states], kept)

    def past(self, row: int, ids: Sequence[int]) -> Past:
        """Return a copy of what was processed of the first ids of a row."""
        slots = self.mask[row, : self.width].nonzero().squeeze(-1)[: len(ids)]
        return Past(
            ids,
            [
                (layer.keys[row][:, slots], layer.values[row][:, slots])
                for layer in self.cache.layers
            ],
        )

    @property
    def keeps(self) -> bool:
        """True if what was processed of single rows can be kept (`past`)."""
        return has_growing_layers(self.cache)

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
        # A finished row may still be in the batch: its positions must stay within the model's
        # context.
        position = self.position.clamp(max=self.policy.context_length - 1)
        self.position, self.width = self.position + 1, self.width + 1
        return self._forward(tokens[:, None], position[:, None])

    def _forward(self, ids: Tensor, position: Tensor) -> Tensor:
        # Attention has a faster path without a mask. A purely recurrent model takes only the mask
        # of the tokens that it processes.
        masked = self.padded and (self.cache_name == "past_key_values" or ids.shape[1] > 1)
        mask = self.mask[:, : self.width].long() if masked else None
        kwargs = {
            "attention_mask": mask,
            "position_ids": position,
            self.cache_name: self.cache,
            "use_cache": True,
        }
        return self.policy.next_logits(ids, **kwargs)


def shared_levels(
    prompts: Sequence[Sequence[int]], beginnings: Sequence[int], forward_cost: int = FORWARD_COST
) -> list[list[int]]:
    """Return the levels in which to process the prompts: for each level, up to which id of every
    prompt, below its length. What is equal up to there is processed once. The last level, of whole
    prompts, is not among them.

    Candidates are the ids with which all prompts begin, and `beginnings`; those are taken with
    which the fewest ids are processed, padding included. A level counts as `forward_cost` ids."""
    lengths = list(map(len, prompts))
    common = min(num_common(min(map(list, prompts)), max(map(list, prompts))), min(lengths) - 1)
    of_all = [common] * len(prompts)
    of_some = [
        min(beginning, length - 1) for beginning, length in zip(beginnings, lengths, strict=True)
    ]
    of_both = [max(pair) for pair in zip(of_all, of_some, strict=True)]

    return min(
        ([], [of_all], [of_some], [of_all, of_both]),
        key=lambda levels: num_processed(prompts, levels, forward_cost),
    )


def num_processed(
    prompts: Sequence[Sequence[int]], levels: Sequence[list[int]], forward_cost: int
) -> int:
    """Return the number of ids, padding included, that are processed with these levels, and
    `forward_cost` for each level."""
    blocks = pairwise([[0] * len(prompts), *levels, list(map(len, prompts))])
    return len(levels) * forward_cost + sum(
        len({tuple(prompt[:j]) for prompt, j in zip(prompts, stop, strict=True)})
        * max(j - i for i, j in zip(start, stop, strict=True))
        for start, stop in blocks
    )


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of ids with which both begin."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def cache_argument(model: Any) -> str:
    """Return the name of the argument that takes the cache: `cache_params` in purely recurrent
    models (Mamba), else `past_key_values`."""
    parameters = inspect.signature(
        getattr(model.base_model, "forward", model.base_model)
    ).parameters
    return (
        "cache_params"
        if "cache_params" in parameters and "past_key_values" not in parameters
        else "past_key_values"
    )


def _left_pad(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ids [P, W] and mask [P, W], True on prompt tokens."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor(
        [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device
    )
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def new_cache(config: PreTrainedConfig, slots: int) -> DynamicCache:
    """Return an empty cache for a model of this configuration, for at most `slots` tokens per row.

    Full-attention layers get a `GrowingLayer`. A model with any other kind of layer (sliding
    window, recurrent) keeps the stock layers."""
    cache = DynamicCache(config=config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [GrowingLayer(slots) for _ in cache.layers]
    return cache


def has_growing_layers(cache: DynamicCache) -> bool:
    """Return whether all layers attend to all tokens, wherever there is padding between them."""
    return all(isinstance(layer, GrowingLayer) for layer in cache.layers)


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """`DynamicLayer` that does not copy all states for every token: `keys` and `values` are views
    of buffers that double, up to `slots`."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.buffers: list[Tensor] = []
        self.is_initialized: bool = False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
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

    def restore(
        self, states: Sequence[tuple[Tensor, Tensor] | None], lengths: Sequence[int]
    ) -> None:
        """Begin with the first `lengths[i]` keys and values, [H, T, D] each, of row i, padded on
        the left with zeros."""
        some = next(x for x in states if x is not None)
        heads = len(some[0])
        size, width = max(1, min(2 * max(lengths), self.slots)), max(lengths)
        self.dtype, self.device, self.is_initialized = some[0].dtype, some[0].device, True
        self.buffers = [x.new_zeros(len(states), heads, size, x.shape[-1]) for x in some]
        for row, (own, length) in enumerate(zip(states, lengths, strict=True)):
            for buffer, x in zip(self.buffers, own or (), strict=False):
                buffer[row, :, width - length : width] = x[:, :length]
        self.keys, self.values = (buffer[:, :, :width] for buffer in self.buffers)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by row `beam_idx[i]`; the number of rows may change. One copy, with room
        for more tokens."""
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
