"""Sampled tokens and their log-probabilities against the model itself."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from rlmods.policy.base import Policy
from rlmods.policy.cpu_linear import packed_weight
from rlmods.rollout import Local
from tests.policy.test_cpu_linear import needs_onednn
from tests.rollout.models import (
    EOS_A,
    EOS_B,
    MODELS,
    PAD,
    RAGGED,
    TinyPolicy,
    assert_agrees,
    checkpointed,
    gpt2,
    llama,
    outcomes,
    sample,
    with_generation_config,
)
from tests.support import tiny_setup


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("name", MODELS)
def test_logprobs_equal_teacher_forcing(name, temperature):
    """With ragged prompts, dropout, train mode, gradient checkpointing and a generation config that
    changes sampling."""
    policy = TinyPolicy(checkpointed(with_generation_config(MODELS[name]()))).train()
    responses = sample(policy, temperature=temperature)
    assert len({len(r.tokens) for r in responses}) > 3  # rows left the batch at different steps
    assert_agrees(policy, responses, temperature)
    assert [r.prompt for r in responses] == [p for p in RAGGED for _ in range(4)]
    assert [r.meta for r in responses[:5]] == [{"sample": i % 4, "iteration": 0} for i in range(5)]


def test_logprobs_equal_those_of_the_trainer():
    """`Policy.forward` on right-padded rows, as in the loss."""
    tokenizer = SimpleNamespace(eos_token_id=EOS_A, pad_token_id=PAD)
    policy = Policy(llama(), tokenizer)
    policy.encode = TinyPolicy.encode.__get__(policy)
    policy.decode = TinyPolicy.decode.__get__(policy)
    rows = sample(policy, temperature=0.6)
    tokens = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor([*r.prompt_tokens, *r.tokens]) for r in rows], batch_first=True
    )
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, r in enumerate(rows):
        mask[i, len(r.prompt_tokens) : len(r.prompt_tokens) + len(r.tokens)] = True
    logprobs = policy(tokens, mask, temperature=0.6).logprobs
    torch.testing.assert_close(
        logprobs[mask],
        torch.tensor([x for r in rows for x in r.behavior_logprobs]),
        rtol=0,
        atol=1e-4,
    )


@needs_onednn
def test_weights_are_packed_while_it_samples():
    """Else every forward of a few rows would change their layout."""
    policy, seen = tiny_setup.policy(), []
    layer = policy.model.model.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda *_: seen.append(packed_weight(layer)))
    rollout = Local(max_tokens=4)
    rollout.sync(policy, iteration=0)
    rollout.generate(tiny_setup.SPLITS.train[:2], samples=2, iteration=0)
    assert len(seen) > 1
    assert all(weight is seen[0] is not None for weight in seen)


def test_the_generation_config_is_not_used():
    policy = TinyPolicy(with_generation_config(llama()))
    responses = sample(policy, RAGGED[:1], samples=64)
    assert len({tuple(r.tokens) for r in responses}) >= 60
    assert outcomes(responses) == outcomes(sample(TinyPolicy(llama()), RAGGED[:1], samples=64))


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_first_tokens_follow_the_softmax(temperature):
    policy, count = TinyPolicy(with_generation_config(gpt2())), 4000
    responses = sample(policy, RAGGED[1:3], samples=count, max_tokens=1, temperature=temperature)
    for prompt, rows in zip(RAGGED[1:3], (responses[:count], responses[count:]), strict=True):
        logits = (
            policy.model(input_ids=torch.tensor([policy.encode(prompt)])).logits[0, -1].detach()
        )
        expected = (logits / temperature).softmax(-1) * count
        seen = torch.bincount(torch.tensor([r.tokens[0] for r in rows]), minlength=len(expected))
        common = expected >= 5
        chi2 = ((seen - expected) ** 2 / expected)[common].sum()
        freedom = int(common.sum()) - 1
        assert freedom > 10
        assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_transformers(name):
    model = MODELS[name]()
    responses = sample(TinyPolicy(model), samples=1, temperature=0.0)
    for r in responses:
        ids = torch.tensor([r.prompt_tokens])
        settings = {
            "do_sample": False,
            "max_new_tokens": 24,
            "eos_token_id": [EOS_A, EOS_B],
            "pad_token_id": PAD,
        }
        want = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[
            0, ids.shape[1] :
        ]
        assert list(r.tokens) == want.tolist()
    assert_agrees(TinyPolicy(model), responses)  # at temperature 1


@pytest.mark.parametrize("fields", [{"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.5}])
def test_truncated_support_and_logprobs(fields):
    policy = TinyPolicy(llama())
    rows = sample(policy, RAGGED[1:2], samples=2000, max_tokens=1, temperature=0.8, **fields)
    logits = (
        policy.model(input_ids=torch.tensor([rows[0].prompt_tokens])).logits[0, -1].detach() / 0.8
    )
    support = logits.topk(fields.get("top_k", len(logits))).indices.tolist()
    inside = logits[support].softmax(-1)
    if "top_p" in fields:
        kept = next(n for n in range(1, len(support) + 1) if inside[:n].sum() >= fields["top_p"])
        support, inside = support[:kept], inside[:kept] / inside[:kept].sum()
    seen = Counter(r.tokens[0] for r in rows)
    assert (
        {t for t, p in zip(support, inside.tolist(), strict=True) if p > 0.01}
        <= set(seen)
        <= set(support)
    )
    for r in rows:
        assert r.behavior_logprobs[0] == pytest.approx(
            inside[support.index(r.tokens[0])].log().item(), abs=1e-4
        )
