"""Sampled tokens and their log-probabilities against the model itself."""

import copy
import dataclasses
import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from rlmods.errors import UserError
from rlmods.ops import keyed_uniforms
from rlmods.policy import Tiny
from rlmods.policy.linear import packed_weight
from rlmods.protocols import Rollout
from rlmods.rollout import Local, local
from rlmods.rollout.local import sample_tokens, truncate
from rlmods.types import Prompt
from tests.rollout.models import (
    EOS_A,
    EOS_B,
    MODELS,
    PAD,
    RAGGED,
    TinyPolicy,
    assert_agrees,
    chain,
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


@needs_onednn
def test_weights_are_packed_while_it_samples():
    """Else every forward of a few rows would change their layout."""
    policy, seen = tiny_setup.policy(), []
    layer = policy.model.model.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda *_: seen.append(packed_weight(layer)))
    rollout = Local(max_tokens=4, fused=False)
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
        monkeypatch.setattr(local, "COMPACT_BELOW", fraction)
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


PINNED = [0.7383111818600042, 0.7930586100733489, 0.7131344960449167]


EDGES = [0.0, 2**-60, 0.25, 0.5, 1 - 2**-53, 1.0]  # 1.0: the previous value in float32


def test_uniforms_are_pinned_and_prefix_stable():
    """Fixed values: another platform or version must not change the samples of a seed."""
    assert keyed_uniforms(3, 1, "a", 0).tolist() == PINNED
    assert keyed_uniforms(300, 1, "a", 0)[:3].tolist() == PINNED
    other_keys = [(1, "a", 1), (2, "a", 0), (1, "b", 0), (1, "a0"), ("1", "a", 0)]
    assert len({float(keyed_uniforms(1, *key)[0]) for key in other_keys} | {PINNED[0]}) == 6


@given(st.lists(st.tuples(st.integers(0, 9), st.text()), min_size=1, max_size=5))
def test_uniforms_do_not_depend_on_those_drawn_before(keys):
    for count, key in keys:
        digest = hashlib.blake2b(repr((key, count)).encode(), digest_size=16).digest()
        expected = np.random.Generator(
            np.random.Philox(key=int.from_bytes(digest, "little"))
        ).random(count)
        assert keyed_uniforms(count, key, count).tolist() == expected.tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.sampled_from([0.3, 1.0, 2.0]))
def test_equals_a_slow_reference(seed, num_tokens, temperature):
    g = torch.Generator().manual_seed(seed)
    logits, u = (
        torch.randn(4, num_tokens, generator=g) * 4,
        torch.rand(4, generator=g, dtype=torch.float64),
    )
    tokens, logprobs = sample_tokens(logits, u, temperature=temperature)
    for row in range(4):
        p = (logits[row].double() / temperature).softmax(-1)
        below = sum(p[: int(tokens[row])].tolist())
        assert below - 1e-6 <= float(u[row]) <= below + float(p[tokens[row]]) + 1e-6
        torch.testing.assert_close(logprobs[row].double(), p[tokens[row]].log(), rtol=0, atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=40).filter(any), st.sampled_from(EDGES))
def test_tokens_of_probability_zero_are_never_sampled(possible, u):
    """At any position in the vocabulary, and at both ends of the unit interval."""
    possible = torch.tensor(possible)
    logits = torch.randn(1, len(possible)).masked_fill(~possible, -torch.inf)
    tokens, logprobs = sample_tokens(
        logits, torch.tensor([u], dtype=torch.float64), temperature=1.0
    )
    assert possible[tokens]
    assert logprobs.isfinite()


def test_rare_tokens_are_sampled():
    """Each token of probability 2e-12 after common ones still has its own part of the unit
    interval."""
    logits = torch.tensor([[0.0] * 1000 + [-20.0] * 1000])
    cdf = logits[0].double().softmax(-1).cumsum(-1)
    ids = torch.arange(1, 2000)
    tokens, _ = sample_tokens(
        logits.expand(len(ids), -1), (cdf[ids - 1] + cdf[ids]) / 2, temperature=1.0
    )
    assert tokens.tolist() == ids.tolist()


class TestFixedPoint:
    """Sums of probabilities as a GPU makes them, in any order."""

    def test_do_not_depend_on_the_order(self):
        weights = torch.rand(3, 2**17).square() * 1e-3
        sums = local.fixed_point_sums(weights)
        other = local.fixed_point_sums(weights[:, torch.randperm(2**17)])
        assert torch.equal(sums[:, -1], other[:, -1])
        torch.testing.assert_close(sums, weights.double().cumsum(-1), rtol=1e-7, atol=1e-8)

    def test_sample_the_same_tokens(self, monkeypatch):
        logits = 5 * torch.randn(300, 1000)
        uniform = torch.rand(300, dtype=torch.float64)
        expected = sample_tokens(logits, uniform, temperature=0.8)
        monkeypatch.setattr(local, "cumulative", local.fixed_point_sums)
        tokens, logprobs = sample_tokens(logits, uniform, temperature=0.8)
        assert torch.equal(tokens, expected[0])
        torch.testing.assert_close(logprobs, expected[1], rtol=0, atol=1e-6)

    def test_sample_rare_tokens_but_none_of_probability_zero(self, monkeypatch):
        monkeypatch.setattr(local, "cumulative", local.fixed_point_sums)
        test_rare_tokens_are_sampled()
        for possible, u in (([True, False], 1 - 2**-53), ([False, True], 0.0)):
            logits = torch.zeros(1, 2).masked_fill(~torch.tensor(possible), -torch.inf)
            tokens, _ = sample_tokens(
                logits, torch.tensor([u], dtype=torch.float64), temperature=1.0
            )
            assert possible[int(tokens)]

    def test_report_logits_that_are_not_finite(self, monkeypatch):
        monkeypatch.setattr(local, "cumulative", local.fixed_point_sums)
        logits = torch.tensor([[0.0, torch.nan]])
        _, logprobs = sample_tokens(logits, torch.zeros(1, dtype=torch.float64), temperature=1.0)
        assert not logprobs.isfinite().any()


def test_bfloat16_logits_are_sampled_in_float32():
    logits, u = (
        torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).bfloat16(),
        torch.arange(8, dtype=torch.float64) / 8,
    )
    for actual, expected in zip(
        sample_tokens(logits, u, temperature=0.7),
        sample_tokens(logits.float(), u, temperature=0.7),
        strict=True,
    ):
        assert torch.equal(actual, expected)


def test_greedy_logprobs_are_those_of_temperature_one():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    token, logprob = sample_tokens(
        logits, torch.tensor([0.99], dtype=torch.float64), temperature=0.0, top_k=1
    )
    assert token.item() == 1
    torch.testing.assert_close(logprob, logits.log_softmax(-1)[:, 1])


def test_truncation_keeps_the_fewest_tokens():
    scores = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    kept = {
        p: truncate(scores, top_p=p, top_k=0).isfinite().int().tolist()[0]
        for p in (1e-9, 0.49, 0.51, 0.76, 0.91)
    }
    assert kept == {
        1e-9: [0, 1, 0, 0],
        0.49: [0, 1, 0, 0],
        0.51: [0, 1, 0, 1],
        0.76: [0, 1, 1, 1],
        0.91: [1, 1, 1, 1],
    }
    assert truncate(scores, top_p=1.0, top_k=2).isfinite().int().tolist() == [[0, 1, 0, 1]]
    assert torch.equal(truncate(scores, top_p=1.0, top_k=9), scores)
    # top_p counts the mass among the top_k: 0.5 / 0.75 reaches 0.6 alone
    assert truncate(scores, top_p=0.6, top_k=2).isfinite().int().tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("pad", [PAD, EOS_A])
def test_exact_tokens_lengths_and_finish(pad):
    """EOS-a early, EOS-b early, no EOS at full length, EOS in the last slot, EOS at once; longer
    rows beside shorter ones."""
    model = chain("MNA", "PQRB", "STUVWXYZ", "EFGHA", "KA", "[\\]^_`a")
    expected = {"M": "NA", "P": "QRB", "S": "TUVW", "E": "FGHA", "K": "A", "OOO[": "\\]^_"}
    policy = TinyPolicy(model, pad=pad)
    responses = sample(
        policy, [Prompt(id=text, text=text) for text in expected], samples=2, max_tokens=4
    )
    for r in responses:
        want = expected[r.prompt.id]
        assert policy.decode(r.tokens) == want
        assert len(r.behavior_logprobs) == len(r.tokens)
        assert r.behavior_logprobs == [0.0] * len(want)
        stopped = want[-1] in "AB"
        assert r.finish == ("stop" if stopped else "length")
        assert r.text == (want[:-1] if stopped else want)


def test_stop_strings_end_a_row_and_stay_in_the_text():
    model = chain("MNOP", "QRSA")
    prompts = [Prompt(id=t, text=t) for t in ("L", "M", "Q")]
    rows = sample(
        TinyPolicy(model), prompts, samples=2, max_tokens=6, stop=["OP", "never", "LLLLL"]
    )
    assert [(r.text, r.finish) for r in rows[::2]] == [
        ("LLLLL", "stop"),
        ("NOP", "stop"),
        ("RS", "stop"),
    ]
    assert rows[2].tokens == [14, 15, 16]
    long = sample(TinyPolicy(model), prompts, samples=1, max_tokens=30, stop=("L" * 20,))
    assert [len(r.tokens) for r in long] == [20, 30, 3]
    assert [r.finish for r in long] == ["stop", "length", "stop"]


def test_stop_strings_do_not_change_other_rows():
    policy = TinyPolicy(llama())
    free, stopped = sample(policy), sample(policy, stop="G")
    assert any(len(a.tokens) > len(b.tokens) for a, b in zip(free, stopped, strict=True))
    for a, b in zip(free, stopped, strict=True):
        end = a.text.find("G") + 1
        assert b.text == (a.text[:end] if end else a.text)


def test_context_length_ends_a_row():
    policy = TinyPolicy(gpt2(), eos=[], context=128)
    prompts = [Prompt(id=str(n), text="M" * n) for n in (127, 120, 100)]
    rows = sample(policy, prompts, samples=2, max_tokens=16)
    assert [(len(r.tokens), r.finish) for r in rows[::2]] == [
        (1, "length"),
        (8, "length"),
        (16, "length"),
    ]
    assert_agrees(policy, rows * 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [("M" * 16, "prompt p9.* 16 tokens .* 16; .*policy="), ("", "prompt p9.*empty")],
)
def test_prompts_without_room_for_a_response_are_rejected(text, message):
    with pytest.raises(UserError, match=message):
        sample(TinyPolicy(llama(), context=16), [Prompt(id="p9", text=text)])


def test_nan_logits_are_reported():
    policy = TinyPolicy(llama())
    policy.model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(UserError, match=r"iteration 3: .*not finite"):
        sample(policy, iteration=3)


def test_finished_rows_that_stay_in_the_batch_sample_no_more_tokens():
    """Too few rows are finished for compaction; the finished one would continue to EOS and past the
    model's last position."""
    others = [Prompt(id=str(i), text="L") for i in range(15)]
    rows = sample(
        TinyPolicy(chain("MNOA"), context=10),
        [Prompt(id="long", text="LLLLLLLM"), *others],
        samples=1,
        max_tokens=9,
    )
    assert [(r.text, r.finish) for r in rows[:2]] == [("NO", "length"), ("L" * 9, "length")]
    rows = sample(
        TinyPolicy(gpt2(), eos=[]), [Prompt(id="long", text="M" * 127), *others], samples=1
    )
    assert [len(r.tokens) for r in rows] == [1] + [24] * 15


class Int8Params(nn.Parameter):
    """Has the class name of bitsandbytes' parameter."""


def test_products_in_8_bits_may_differ_more(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    monkeypatch.setattr(local, "sampler_gap", lambda *args: 2.2e-3)
    with pytest.raises(UserError, match="other log-probabilities with a cache"):
        Local().check_policy(policy)
    layer = policy.model.model.layers[0].mlp.up_proj
    layer.weight = Int8Params(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    Local().check_policy(policy)
    monkeypatch.setattr(local, "sampler_gap", lambda *args: 0.3)
    with pytest.raises(UserError, match="other log-probabilities with a cache"):
        Local().check_policy(policy)
