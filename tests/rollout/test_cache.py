"""The in-place cache equals the stock cache bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlmods.rollout import cache
from rlmods.rollout.cache import GrowingLayer, new_cache
from tests.rollout.models import TinyPolicy, gpt2, llama, mistral, sample


@pytest.mark.parametrize("slots", [9, 64])
def test_layer_matches_the_stock_layer(slots):
    ours, stock = GrowingLayer(slots), DynamicLayer()
    rows = 3
    for step, new in enumerate([5, 1, 1, 1, 1]):
        key, value = torch.randn(2, rows, 2, new, 4)
        for actual, expected in zip(
            ours.update(key, value), stock.update(key.clone(), value.clone()), strict=True
        ):
            assert torch.equal(actual, expected)
        assert ours.get_seq_length() == stock.get_seq_length()
        assert ours.get_mask_sizes(1) == stock.get_mask_sizes(1)
        if step in (0, 3):
            keep = torch.tensor([0, 0, 2, 1, 1]) if step == 0 else torch.tensor([4, 1])
            ours.reorder_cache(keep)
            stock.reorder_cache(keep)
            rows = len(keep)


def test_states_are_written_in_place():
    layer, addresses = GrowingLayer(1000), []
    for _ in range(64):
        keys, _ = layer.update(*torch.randn(2, 1, 1, 1, 2))
        addresses.append(keys.data_ptr())
    assert len(set(addresses)) <= 8  # one per doubling
    assert layer.buffers[0].shape[-2] < 2 * 64


def test_buffers_do_not_grow_beyond_slots():
    layer = GrowingLayer(11)
    for _ in range(11):
        layer.update(*torch.randn(2, 1, 1, 1, 2))
    assert layer.buffers[0].shape[-2] == 11


@pytest.mark.parametrize("model", [llama, gpt2])
def test_samples_equal_those_of_the_stock_cache(model, monkeypatch):
    policy = TinyPolicy(model())
    ours = sample(policy)
    assert all(
        isinstance(layer, GrowingLayer) for layer in new_cache(policy.model.config, 8).layers
    )
    monkeypatch.setattr(cache, "new_cache", lambda config, _slots: DynamicCache(config=config))
    stock = sample(policy)
    assert [r.tokens for r in ours] == [r.tokens for r in stock]
    assert [r.behavior_logprobs for r in ours] == [r.behavior_logprobs for r in stock]


def test_models_with_sliding_windows_keep_the_stock_layers():
    cache = new_cache(mistral().config, 8)
    assert not any(isinstance(layer, GrowingLayer) for layer in cache.layers)
