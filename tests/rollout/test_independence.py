"""Samples depend on weights, seed, prompt, occurrence, sample and iteration, and on nothing
else."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlmods.rollout import Local, decode
from tests.rollout.models import (
    MODELS,
    RAGGED,
    TinyPolicy,
    assert_agrees,
    gpt2,
    llama,
    outcomes,
    sample,
)


@pytest.mark.parametrize("name", MODELS)
def test_other_rows_and_batch_size_do_not_matter(name, monkeypatch):
    policy = TinyPolicy(MODELS[name]())
    expected = outcomes(sample(policy))
    assert outcomes(sample(policy, batch_size=1)) == expected
    assert outcomes(sample(policy, batch_size=9)) == expected
    assert sorted(outcomes(sample(policy, RAGGED[::-1]))) == sorted(expected)
    # as on two ranks
    assert outcomes(sample(policy, RAGGED[:2])) + outcomes(sample(policy, RAGGED[2:])) == expected
    assert [s for s in expected if s[1] < 2] == outcomes(sample(policy, samples=2))
    for fraction in (0.0, 1.0):  # finished rows never leave the batch; they leave it at once
        monkeypatch.setattr(decode, "COMPACT_BELOW", fraction)
        assert outcomes(sample(policy)) == expected


def test_a_higher_limit_only_extends_responses():
    policy = TinyPolicy(llama(), eos=[])
    short, long = sample(policy, max_tokens=5), sample(policy, max_tokens=20)
    assert [r.tokens for r in short] == [r.tokens[:5] for r in long]


def test_seed_iteration_sample_occurrence_and_id_change_samples():
    policy, tokens = TinyPolicy(llama(), eos=[]), lambda rows: [tuple(r.tokens) for r in rows]
    base = tokens(sample(policy, RAGGED[:1], samples=8))
    assert len(set(base)) == 8
    assert tokens(sample(policy, RAGGED[:1], samples=8)) == base
    assert not set(base) & set(tokens(sample(policy, RAGGED[:1], samples=8, seed=8)))
    assert not set(base) & set(tokens(sample(policy, RAGGED[:1], samples=8, iteration=1)))
    twice = tokens(sample(policy, RAGGED[:1] * 2, samples=8))
    assert twice[:8] == base
    assert len(set(twice)) == 16
    renamed = [dataclasses.replace(RAGGED[0], id="other")]
    assert not set(base) & set(tokens(sample(policy, renamed, samples=8)))


def test_a_prompt_of_two_passes_gets_other_answers_in_one_batch():
    """A batch may hold a prompt of this pass over the data and of the next: the answers are those
    that each pass gets by itself."""
    policy, tokens = TinyPolicy(llama(), eos=[]), lambda rows: [tuple(r.tokens) for r in rows]
    passes = [dataclasses.replace(RAGGED[0], time=time) for time in (0, 1, 2)]
    alone = [tokens(sample(policy, [prompt], samples=4)) for prompt in passes]
    assert len({answer for answers in alone for answer in answers}) == 12
    together = tokens(sample(policy, passes, samples=4))
    assert together == [answer for answers in alone for answer in answers]


def test_global_generators_are_neither_used_nor_advanced():
    policy = TinyPolicy(gpt2()).train()
    torch.manual_seed(1)
    first, state = outcomes(sample(policy)), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert outcomes(sample(policy)) == first


def test_generate_uses_the_current_weights():
    policy = TinyPolicy(llama())
    rollout = Local(seed=7)
    rollout.sync(policy, iteration=0)
    before = rollout.generate(RAGGED, samples=4, iteration=0)
    policy.model.lm_head.weight.data.mul_(-1)
    after = rollout.generate(RAGGED, samples=4, iteration=0)
    assert outcomes(before) != outcomes(after)
    assert_agrees(policy, after)
