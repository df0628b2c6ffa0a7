"""Keys and values that are kept of a turn, from which the next turn goes on.

H heads, T ids and D features."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from rlmods.rollout.cache import (
    CachedRows,
    GrowingLayer,
    num_common,
    num_processed,
    right_mask,
    shared_levels,
)

LayerStates = tuple[Tensor, Tensor]
"""Keys and values of a layer, [H, T, D] each."""


@dataclass(frozen=True)
class Past:
    """Processed ids of a row, from which rows that begin with the same ids can go on."""

    ids: Sequence[int]
    """The T ids."""
    states: Sequence[LayerStates]
    """Keys and values of each layer."""


def copy_past(rows: CachedRows, row: int, ids: Sequence[int]) -> Past:
    """Return a copy of the keys and values of the first ids of a row."""
    slots = rows.mask[row, : rows.width].nonzero().squeeze(-1)[: len(ids)]
    layers = rows.cache.layers
    return Past(ids, [(x.keys[row][:, slots], x.values[row][:, slots]) for x in layers])


def go_on(
    rows: CachedRows,
    prompts: Sequence[Sequence[int]],
    pasts: Sequence[Past | None],
    steps: int,
    beginnings: Sequence[int],
    forward_cost: int,
) -> Float[Tensor, "P V"] | None:
    """Process what follows `pasts` in the prompts, with room for `steps` more tokens, and return
    the next logits. None, and nothing is processed, if it takes fewer ids to process equal ids of
    the prompts once."""
    kept = []
    rests = []
    for past, prompt in zip(pasts, prompts, strict=True):
        start = 0 if past is None else min(num_common(past.ids, prompt), len(prompt) - 1)
        kept.append(start)
        rests.append(prompt[start:])
    longest = max(map(len, rests))
    levels = shared_levels(prompts, beginnings, forward_cost)
    num_anew = num_processed(prompts, levels, forward_cost)
    if not any(kept) or len(prompts) * longest >= num_anew:
        return None
    rows.allocate(right_mask(kept, rows.policy.device), max(kept) + longest + steps)
    for i, layer in enumerate(rows.cache.layers):
        restore(layer, [None if past is None else past.states[i] for past in pasts], kept)
    return rows.extend(rests)


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
