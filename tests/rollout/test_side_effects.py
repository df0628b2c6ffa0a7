"""Side effects of sampling, number of forwards, data types and invalid settings."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlmods.errors import UserError
from rlmods.protocols import Rollout
from rlmods.rollout import Local
from tests.rollout.models import RAGGED, TinyPolicy, assert_agrees, gpt2, llama, sample


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
