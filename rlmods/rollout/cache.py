"""A key-value cache that appends in place: R rows, H heads, S slots, D features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


def new_cache(config: PreTrainedConfig, slots: int) -> DynamicCache:
    """An empty cache for a model of this config, to hold at most `slots` tokens a row.

    Plain attention layers get a `GrowingLayer`. A model with any other kind (sliding windows, recurrent states) keeps the stock layers.
    """
    cache = DynamicCache(config=config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [GrowingLayer(slots) for _ in cache.layers]
    return cache


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """`DynamicLayer` without its copy of everything at every token: `keys` and `values` are views of buffers that double, up to `slots`.

    Rows are repeated and dropped by `reorder_cache`, which every kind of cache layer has.
    """

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.buffers: list[Tensor] = []
        self.is_initialized: bool = False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends [R, H, S', D] states; returns all of them so far, [R, H, S + S', D] each."""
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
        """Row i becomes what row `beam_idx[i]` was; the number of rows may change. One copy, with room for what follows."""
        if self.is_initialized:
            length = self.keys.shape[-2]
            self._grow(length + 1, beam_idx)
            self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)

    def _grow(self, needed: int, rows: Tensor | None = None) -> None:
        size = max(needed, min(2 * needed, self.slots))
        self.buffers = [_copied(held, size, rows) for held in (self.keys, self.values)]


def _copied(held: Tensor, size: int, rows: Tensor | None) -> Tensor:
    _, heads, length, features = held.shape
    buffer = held.new_empty(len(held) if rows is None else len(rows), heads, size, features)
    if rows is None:
        buffer[:, :, :length] = held
    else:
        torch.index_select(held, 0, rows.to(held.device), out=buffer[:, :, :length])
    return buffer
