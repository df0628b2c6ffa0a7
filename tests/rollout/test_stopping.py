"""Conditions that end a response: EOS, stop strings, token limit, context length; and prompts that
are rejected."""

from __future__ import annotations

import pytest
import torch

from rlmods.errors import UserError
from rlmods.types import Prompt
from tests.rollout.models import EOS_A, PAD, TinyPolicy, assert_agrees, chain, gpt2, llama, sample


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
