from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.preference import KTO
from tests.preference.losses import KL, call
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, ranking, rankings


@few
@given(rankings, st.floats(0.01, 3), st.floats(0.5, 2), st.floats(0.5, 2))
def test_equals_the_loop(r: Rankings, beta: float, desirable: float, undesirable: float) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()
    expected = []
    for p in range(len(r.rank)):
        there = [k for k in range(r.rank.shape[1]) if r.present[p, k]]
        total = torch.zeros((), dtype=torch.float64)
        for k in there:
            z = beta * (slow[p, k] - r.ref_logprobs[p, k] - KL)
            good = r.rank[p, k] == 0
            value = (desirable if good else undesirable) / (1 + torch.exp(-z if good else z))
            total = total + (desirable if good else undesirable) - value
        expected.append(total / max(1, len(there)))
    actual = call(KTO(beta, desirable, undesirable), r, fast)
    torch.testing.assert_close(actual, torch.stack(expected))
    torch.testing.assert_close(
        gradient(actual.sum(), fast), gradient(torch.stack(expected).sum(), slow)
    )


def test_a_pair_is_the_mean_of_two_labelled_responses() -> None:
    r = replace(
        ranking(5, 2, seed=4),
        num_tokens=torch.ones(5, 2, dtype=torch.long),
        rank=torch.tensor([[0, 1]] * 5),
    )
    halves = [call(KTO(), r.candidates(torch.tensor([k]))) for k in (0, 1)]
    torch.testing.assert_close(call(KTO(), r), sum(halves) / 2)


def test_kl_shifts_the_reference_point_without_a_gradient() -> None:
    r = replace(
        ranking(1, 1, seed=4),
        num_tokens=torch.ones(1, 1, dtype=torch.long),
        rank=torch.zeros(1, 1, dtype=torch.long),
    )
    kl = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    logprobs = (r.ref_logprobs + 2.0).requires_grad_()
    loss = KTO()(logprobs, r.ref_logprobs, r.num_tokens, r.rank, kl)
    assert loss.item() == pytest.approx(0.5)
    assert torch.autograd.grad(loss.sum(), [kl, logprobs], allow_unused=True)[0] is None
