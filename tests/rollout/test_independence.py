"""What samples depend on, and what they do not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlmods.rollout import Local, decode
from tests.rollout.models import MODELS, RAGGED, TinyPolicy, assert_agrees, gpt2, llama, sample, spoken


@pytest.mark.parametrize("name", MODELS)
def test_neighbours_do_not_matter(name, monkeypatch):
    policy = TinyPolicy(MODELS[name]())
    whole = spoken(sample(policy))
    assert spoken(sample(policy, batch_size=1)) == whole
    assert spoken(sample(policy, batch_size=9)) == whole
    assert sorted(spoken(sample(policy, RAGGED[::-1]))) == sorted(whole)
    assert spoken(sample(policy, RAGGED[:2])) + spoken(sample(policy, RAGGED[2:])) == whole  # as on two ranks
    assert [s for s in whole if s[1] < 2] == spoken(sample(policy, samples=2))
    for share in (0.0, 1.0):  # rows never leave the batch, rows leave it at once
        monkeypatch.setattr(decode, "COMPACT_BELOW", share)
        assert spoken(sample(policy)) == whole


def test_a_longer_limit_only_continues():
    policy = TinyPolicy(llama(), eos=[])
    short, long = sample(policy, max_tokens=5), sample(policy, max_tokens=20)
    assert [r.tokens for r in short] == [r.tokens[:5] for r in long]


def test_seed_iteration_sample_and_occurrence_decide():
    policy, words = TinyPolicy(llama(), eos=[]), lambda rows: [tuple(r.tokens) for r in rows]
    one = words(sample(policy, RAGGED[:1], samples=8))
    assert len(set(one)) == 8
    assert words(sample(policy, RAGGED[:1], samples=8)) == one
    assert not set(one) & set(words(sample(policy, RAGGED[:1], samples=8, seed=8)))
    assert not set(one) & set(words(sample(policy, RAGGED[:1], samples=8, iteration=1)))
    twice = words(sample(policy, RAGGED[:1] * 2, samples=8))
    assert twice[:8] == one
    assert len(set(twice)) == 16
    renamed = [dataclasses.replace(RAGGED[0], id="other")]
    assert not set(one) & set(words(sample(policy, renamed, samples=8)))


def test_global_generators_are_neither_read_nor_moved():
    policy = TinyPolicy(gpt2()).train()
    torch.manual_seed(1)
    first, state = spoken(sample(policy)), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert spoken(sample(policy)) == first


def test_weights_are_those_at_the_time_of_generate():
    policy = TinyPolicy(llama())
    rollout = Local(seed=7)
    rollout.sync(policy, iteration=0)
    before = rollout.generate(RAGGED, samples=4, iteration=0)
    policy.model.lm_head.weight.data.mul_(-1)
    after = rollout.generate(RAGGED, samples=4, iteration=0)
    assert spoken(before) != spoken(after)
    assert_agrees(policy, after)
