"""Sampled tokens and their log-probabilities against the model itself."""

import copy
import dataclasses
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.cpu_linear import packed_weight
from rlmods.protocols import Rollout
from rlmods.rollout import Local, decode
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
from tests.support.models import needs_onednn


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


def test_modes_are_restored_and_no_graph_is_built():
    policy = TinyPolicy(gpt2()).train()
    policy.model.transformer.h[0].eval()
    before = [m.training for m in policy.modules()]
    seen = []

    def record(module, _, out):
        seen.append(
            (
                module.training,
                out.requires_grad,
                out.is_inference(),
                out.shape[:-1].numel() <= 4 * len(RAGGED),
            )
        )

    handle = policy.model.lm_head.register_forward_hook(record)
    sample(policy, samples=4)
    handle.remove()
    # one position of a row: only the last logits are computed
    assert set(seen) == {(False, False, False, True)}
    assert [m.training for m in policy.modules()] == before
    policy.model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(UserError):
        sample(policy)
    assert [m.training for m in policy.modules()] == before


def test_one_prefill_for_all_samples():
    policy, shapes = TinyPolicy(llama()), []
    policy.model.base_model.register_forward_pre_hook(
        lambda _m, _a, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    sample(policy, RAGGED, samples=8, batch_size=24, max_tokens=3)
    assert [s for s in shapes if s[1] > 1] == [(3, 17), (3, 4)]
    assert len(shapes) == 6


def test_on_tokens_reports_rows_and_tokens():
    rollout, calls = Local(max_tokens=12, batch_size=8), []
    rollout.on_tokens = lambda *numbers: calls.append(numbers)
    rollout.sync(TinyPolicy(llama()), iteration=0)
    responses = rollout.generate(RAGGED, samples=4, iteration=0)
    assert calls == sorted(calls)
    assert calls[-1] == (24, 24, sum(len(r.tokens) for r in responses))


def test_bfloat16_model_has_float32_logprobs():
    policy = TinyPolicy(llama().bfloat16())
    responses = sample(policy)
    logprob = torch.tensor(responses[0].behavior_logprobs[0])
    assert logprob.bfloat16() != logprob
    assert_agrees(policy, responses, atol=0.3)


@pytest.mark.parametrize("first", ["forward", "sample"])
def test_autocast_caches_no_weights(first):
    """Weights change between two calls under one autocast, as in a training step: neither call may
    use the other's casts."""
    policy, ids = TinyPolicy(llama()), torch.tensor([[5, 6, 7]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        if first == "forward":
            policy.model(input_ids=ids)
            policy.model.lm_head.weight.mul_(-1)
            assert_agrees(TinyPolicy(copy.deepcopy(policy.model)), sample(policy), atol=0.3)
        else:
            sample(policy)
            policy.model.lm_head.weight.mul_(-1)
            assert torch.equal(
                policy.model(input_ids=ids).logits,
                copy.deepcopy(policy.model)(input_ids=ids).logits,
            )


def test_no_prompts_give_no_responses():
    assert sample(TinyPolicy(llama()), []) == []
    assert isinstance(Local(), Rollout)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("stop", [""]),
    ],
)
def test_invalid_settings_name_the_override(field, value):
    with pytest.raises(ValueError, match=rf"rollout\.{field}="):
        Local(**{field: value})
