"""Processed ids of the rows of a batch: keys and values of every layer, attention mask and next
position.

P prompts or R rows; H heads, S slots and D features in the cache; T ids that are kept of a turn.
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from rlmods.policy.base import Policy
from rlmods.policy.linear import autocast_dtype
from rlmods.rollout.graph import StepGraph

FORWARD_COST = 256
"""Number of ids whose processing takes about as long as the overhead of a forward."""

MIN_REPLAYS = 16
"""Smallest number of steps for which a step is recorded: a recording takes about as long as a few
steps."""

Levels = Sequence[list[int]]
"""Positions, one per prompt and level. Ids that prompts have in common up to the position of a
level are processed once."""
LayerStates = tuple[Tensor, Tensor]
"""Keys and values of a layer, [H, T, D] each."""


@dataclass(frozen=True)
class Past:
    """Processed ids of a row, from which rows that begin with the same ids can go on."""

    ids: Sequence[int]
    """The T ids."""
    states: Sequence[LayerStates]
    """Keys and values of each layer."""


class CachedRows:
    """Cache, attention mask [R, S] and next position [R] of every row. `width` slots are in use,
    and some of them hold padding if it is `padded`.

    Args:
        graphs: record decode steps and replay them (`StepGraph`)."""

    def __init__(self, policy: Policy, graphs: bool = False) -> None:
        self.policy = policy
        self.graphs = graphs
        self.graph: StepGraph | None = None
        # `cache` from transformers 5.24 on; before, `cache_params` in models without attention
        parameters = inspect.signature(policy.model.base_model.forward).parameters
        names = ("cache", "past_key_values", "cache_params")
        self.cache_name = next((x for x in names if x in parameters), "past_key_values")

    def allocate(self, mask: Bool[Tensor, "R W"], slots: int) -> None:
        """Make an empty cache of S `slots`, the first W of them with this mask: True on ids."""
        self.width = mask.shape[1]
        self.padded = not bool(mask.all())
        self.position = mask.sum(-1)
        self.mask = torch.cat([mask, mask.new_ones(len(mask), slots - self.width)], dim=1)
        self.cache = new_cache(self.policy.model.config, slots)

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        pasts: Sequence[Past | None],
        steps: int,
        beginnings: Sequence[int],
        forward_cost: int,
    ) -> Float[Tensor, "P V"]:
        """Process the prompts, with room for `steps` more tokens, and return their next logits:
        what follows the `pasts` in them or, if that takes fewer ids, all of them, equal ids once
        (`shared_levels`)."""
        levels = shared_levels(prompts, beginnings, forward_cost)
        kept = []
        rests = []
        for past, prompt in zip(pasts, prompts, strict=True):
            start = 0 if past is None else min(num_common(past.ids, prompt), len(prompt) - 1)
            kept.append(start)
            rests.append(prompt[start:])
        longest = max(map(len, rests))
        num_anew = num_processed(prompts, levels, forward_cost)
        if not any(kept) or len(prompts) * longest >= num_anew:
            return self._prefill(prompts, levels, steps)
        self.allocate(right_mask(kept, self.policy.device), max(kept) + longest + steps)
        for i, layer in enumerate(self.cache.layers):
            restore(layer, [None if past is None else past.states[i] for past in pasts], kept)
        return self.extend(rests)

    def _prefill(
        self, prompts: Sequence[Sequence[int]], shared: Levels, steps: int
    ) -> Float[Tensor, "P V"]:
        levels = [*shared, list(map(len, prompts))]
        self.cache = new_cache(self.policy.model.config, 0)
        if not self.has_growing_layers:
            levels = levels[-1:]
        width = max(levels[0])
        for start, stop in pairwise(levels):
            width += max(j - i for i, j in zip(start, stop, strict=True))
        index = _number(_prefixes(prompts, levels[0]))
        ids, mask = _left_pad(list(index), self.policy.pad_id, self.policy.device)
        self.allocate(mask, width + steps)
        logits = self._forward(ids, (mask.cumsum(-1) - 1).clamp(min=0))
        for start, stop in pairwise(levels):
            # the row of the previous level that a prefix extends, and the ids that follow
            parents: dict[tuple[int, ...], tuple[int, Sequence[int]]] = {}
            for prompt, i, j in zip(prompts, start, stop, strict=True):
                parents[tuple(prompt[:j])] = (index[tuple(prompt[:i])], prompt[i:j])
            rows = [row for row, _ in parents.values()]
            self.select(torch.tensor(rows, device=self.policy.device))
            logits = self.extend([rest for _, rest in parents.values()])
            index = _number(parents)
        repeat = [index[tuple(prompt)] for prompt in prompts]
        if repeat != list(range(len(index))):
            selected = torch.tensor(repeat, device=self.policy.device)
            self.select(selected)
            logits = logits[selected]
        return logits

    def select(self, rows: Int[Tensor, " R"]) -> None:
        """Keep these rows, in this order; a row may be kept several times."""
        self._leave_graph()
        self.cache.reorder_cache(rows)
        self.position = self.position[rows]
        self.mask = self.mask[rows]

    def append(self, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Process one more token per row and return the next logits."""
        # A finished row may still be in the batch: its positions must stay within the model's
        # context.
        position = self.position.clamp(max=self.policy.context_length - 1)
        self.position = self.position + 1
        graph = self._graph() if self.graphs else None
        self.width += 1
        if graph is not None:
            return graph(tokens, position)
        return self._forward(tokens[:, None], position[:, None])

    def _graph(self) -> StepGraph | None:
        """Return the recorded step of these rows, a new one if its buffers are full. None if too
        few slots are left for a recording to be worth its time."""
        if self.graph is not None and self.width == self.graph.num_slots:
            self._leave_graph()
        slots = self.mask.shape[1]
        if self.graph is None and slots - self.width >= MIN_REPLAYS:
            for layer in self.cache.layers:
                layer.reserve(self.width + MIN_REPLAYS)
                if slots - layer.buffers[0].shape[-2] < MIN_REPLAYS:
                    layer.reserve(slots)  # the rest would have no recording
            buffers = [layer.buffers for layer in self.cache.layers]
            self.graph = StepGraph(self.policy, buffers, self.mask, self.width, self.cache_name)
        return self.graph

    def _leave_graph(self) -> None:
        """Let the layers show the tokens that a recorded step has added, and forget the step."""
        if self.graph is not None:
            for layer in self.cache.layers:
                layer.show(self.width)
        self.graph = None

    def past(self, row: int, ids: Sequence[int]) -> Past:
        """Return a copy of the keys and values of the first ids of a row."""
        self._leave_graph()
        slots = self.mask[row, : self.width].nonzero().squeeze(-1)[: len(ids)]
        layers = self.cache.layers
        return Past(ids, [(x.keys[row][:, slots], x.values[row][:, slots]) for x in layers])

    @property
    def has_growing_layers(self) -> bool:
        """True if all layers attend to all tokens, wherever there is padding between them, so that
        single rows can be copied."""
        return all(isinstance(layer, GrowingLayer) for layer in self.cache.layers)

    def extend(self, rests: Sequence[Sequence[int]]) -> Float[Tensor, "R V"]:
        """Process different numbers of further ids of the rows, and return the next logits."""
        self._leave_graph()
        ids, mask = _left_pad(rests, self.policy.pad_id, self.policy.device)
        position = (self.position[:, None] + mask.cumsum(-1) - 1).clamp(min=0)
        end = self.width + ids.shape[1]
        self.mask[:, self.width : end] = mask
        self.width = end
        self.padded = self.padded or not bool(mask.all())
        self.position = self.position + mask.sum(-1)
        return self._forward(ids, position)

    def _forward(self, ids: Tensor, position: Tensor) -> Tensor:
        # Attention has a faster path without a mask. A purely recurrent model takes only the mask
        # of the tokens that it processes.
        kinds = getattr(self.policy.model.config.get_text_config(), "layer_types", None) or ()
        is_recurrent = self.cache_name == "cache_params" or set(kinds) == {"linear_attention"}
        masked = self.padded and (not is_recurrent or ids.shape[1] > 1)
        context = {
            "attention_mask": self.mask[:, : self.width].long() if masked else None,
            "position_ids": position,
            self.cache_name: self.cache,
            "use_cache": True,
        }
        return self.policy.next_logits(ids, **context)


def shared_levels(
    prompts: Sequence[Sequence[int]], beginnings: Sequence[int], forward_cost: int = FORWARD_COST
) -> Levels:
    """Return the levels in which to process the prompts, below their lengths. The last level, of
    whole prompts, is not among them.

    Candidates are the ids with which all prompts begin, and `beginnings`. The levels that process
    the fewest ids are taken, padding included. A level counts as `forward_cost` ids."""
    shortest = min(map(len, prompts))
    common = num_common(min(map(list, prompts)), max(map(list, prompts)))
    of_all = [min(common, shortest - 1)] * len(prompts)
    of_some = [min(n, len(prompt) - 1) for n, prompt in zip(beginnings, prompts, strict=True)]
    of_both = list(map(max, of_all, of_some))
    candidates: list[Levels] = [[], [of_all], [of_some], [of_all, of_both]]
    return min(candidates, key=lambda levels: num_processed(prompts, levels, forward_cost))


def num_processed(prompts: Sequence[Sequence[int]], levels: Levels, forward_cost: int) -> int:
    """Return the number of ids, padding included, that are processed with these levels, and
    `forward_cost` for each level."""
    total = len(levels) * forward_cost
    bounds = [[0] * len(prompts), *levels, list(map(len, prompts))]
    for start, stop in pairwise(bounds):
        width = max(j - i for i, j in zip(start, stop, strict=True))
        total += len(set(_prefixes(prompts, stop))) * width
    return total


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of ids with which both begin."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _prefixes(
    prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> Iterable[tuple[int, ...]]:
    return (tuple(prompt[:length]) for prompt, length in zip(prompts, lengths, strict=True))


def _number(prefixes: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Number distinct prefixes in the order of their first appearance."""
    return {prefix: i for i, prefix in enumerate(dict.fromkeys(prefixes))}


def _left_pad(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Int[Tensor, "P W"], Bool[Tensor, "P W"]]:
    """Return ids, and a mask that is True on ids and False on padding."""
    mask = right_mask(list(map(len, rows)), device)
    width = mask.shape[1]
    padded = [[pad_id] * (width - len(row)) + list(row) for row in rows]
    return torch.tensor(padded, device=device), mask


def right_mask(lengths: Sequence[int], device: torch.device) -> Bool[Tensor, "P W"]:
    """Return a mask that is True in the last `lengths[i]` columns of row i."""
    width = max(lengths)
    starts = width - torch.tensor(lengths, device=device)
    return torch.arange(width, device=device) >= starts[:, None]


def cache_bytes(config: PreTrainedConfig, itemsize: int) -> int:
    """Return the bytes of keys and values of one token, in `itemsize` bytes each, of a model with
    full attention in every layer."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    shared_heads = getattr(text, "num_key_value_heads", None) or heads
    return int(2 * itemsize * text.num_hidden_layers * shared_heads * size)


def new_cache(config: PreTrainedConfig, slots: int) -> DynamicCache:
    """Return an empty cache for a model of this configuration, for at most `slots` tokens per row.

    Full-attention layers get a `GrowingLayer`. A model with any other kind of layer (sliding
    window, recurrent) keeps the stock layers."""
    cache = DynamicCache(config=config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [GrowingLayer(slots) for _ in cache.layers]
    return cache


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """`DynamicLayer` that does not copy all states for every token: `keys` and `values` are views
    of buffers that double, up to `slots`."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.buffers: list[Tensor] = []
        self.is_initialized: bool = False

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Append states [R, H, S', D] and return all states so far, [R, H, S + S', D] each.

        Attention rounds both to autocast's data type. Keys with rotary positions come in float32
        and are rounded once here, and not with every token."""
        dtype = autocast_dtype(key_states) or key_states.dtype
        key_states = key_states.to(dtype)
        value_states = value_states.to(dtype)
        if not self.is_initialized:
            self.initialize(key_states)
            self.keys = key_states
            self.values = value_states
            return key_states, value_states
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        self.reserve(end)
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.show(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by row `beam_idx[i]`; the number of rows may change. One copy, with room
        for more tokens."""
        if self.is_initialized:
            length = self.keys.shape[-2]
            self._grow(length + 1, beam_idx)
            self.show(length)

    def initialize(self, states: Tensor) -> None:
        self.dtype = states.dtype
        self.device = states.device
        self.is_initialized = True

    def show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)

    def reserve(self, length: int) -> None:
        """Make room for this number of tokens."""
        if not self.buffers or length > self.buffers[0].shape[-2]:
            shown = self.keys.shape[-2]
            self._grow(length)
            self.show(shown)  # else keys and values keep the memory of the old buffers

    def _grow(self, needed: int, rows: Tensor | None = None) -> None:
        size = max(needed, min(2 * needed, self.slots))
        self.buffers = [_copy_to_buffer(states, size, rows) for states in (self.keys, self.values)]


def _copy_to_buffer(states: Tensor, size: int, rows: Tensor | None) -> Tensor:
    """Return a buffer of `size` slots that begins with these states, or with some of their rows."""
    _, heads, length, features = states.shape
    buffer = states.new_empty(len(states) if rows is None else len(rows), heads, size, features)
    if rows is None:
        buffer[:, :, :length] = states
    else:
        torch.index_select(states, 0, rows.to(states.device), out=buffer[:, :, :length])
    return buffer


def restore(
    layer: GrowingLayer, states: Sequence[LayerStates | None], lengths: Sequence[int]
) -> None:
    """Begin with the first `lengths[i]` keys and values of row i, padded on the left with zeros."""
    some = next(x for x in states if x is not None)
    layer.initialize(some[0])
    width = max(lengths)
    size = max(1, min(2 * width, layer.slots))
    layer.buffers = [x.new_zeros(len(states), len(x), size, x.shape[-1]) for x in some]
    for row, (own, length) in enumerate(zip(states, lengths, strict=True)):
        for buffer, x in zip(layer.buffers, own or (), strict=False):
            buffer[row, :, width - length : width] = x[:, :length]
    layer.show(width)
