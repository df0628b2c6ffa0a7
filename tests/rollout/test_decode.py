"""Keyed uniforms and inverse-CDF sampling, including edge cases."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmods.errors import UserError
from rlmods.ops import keyed_uniforms
from rlmods.rollout.decode import sample_tokens, truncate
from rlmods.types import Prompt
from tests.rollout.models import EOS_A, PAD, TinyPolicy, assert_agrees, chain, gpt2, llama, sample

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
