"""The policy that training starts from, as the reference."""

import torch

from rlmods.adapter import LoRA
from rlmods.kl import Penalty
from rlmods.reference import StartPolicy
from tests.support.tiny_setup import SPLITS, attached, learner, policy


def logprobs(model, tokens=None):
    tokens = torch.arange(12).view(2, 6) if tokens is None else tokens
    return model(tokens, torch.ones_like(tokens, dtype=torch.bool)).logprobs.detach()


def test_is_a_frozen_copy() -> None:
    start = policy()
    reference = StartPolicy()(start)
    before = logprobs(start)
    with torch.no_grad():
        next(start.parameters()).add_(0.1)
    assert torch.equal(logprobs(reference), before)
    assert not torch.equal(logprobs(start), before)
    assert not any(x.requires_grad for x in reference.parameters())


def test_under_an_adapter_it_is_the_base() -> None:
    base = logprobs(policy())
    made = attached(learner(adapter=LoRA(rank=4), kl=Penalty("k3", 0.1, "loss")))
    with torch.no_grad():
        for x in made.policy.trainable_tensors().values():
            x.add_(0.3)
    torch.testing.assert_close(logprobs(made.reference.policy), base)
    assert not torch.allclose(logprobs(made.policy), base)
    assert made.reference.networks == []
    batch, _ = made.sample(SPLITS.train[:2])
    plain = policy()(batch.tokens, batch.mask).logprobs
    torch.testing.assert_close(batch.ref_logprobs, plain.detach())
