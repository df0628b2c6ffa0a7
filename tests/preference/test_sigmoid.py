import math

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.preference import Sigmoid
from tests.preference.losses import both, call
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, ranking, rankings
from tests.test_golden import GOLDEN

golden = pytest.mark.skipif(not GOLDEN, reason="no golden numbers beside the repository")


def golden_pairs() -> Rankings:
    values = {
        name: torch.tensor(GOLDEN["preference"][name], dtype=torch.float64)
        for name in GOLDEN["preference"]
        if "_" in name
    }
    logprobs = torch.stack([values["policy_chosen"], values["policy_rejected"]], 1)
    ref = torch.stack([values["ref_chosen"], values["ref_rejected"]], 1)
    rank = torch.tensor([0, 1]).expand(len(ref), 2)
    return Rankings(logprobs, ref, torch.ones_like(rank), rank, torch.zeros(len(ref)))


@few
@given(rankings, st.floats(0.01, 2), st.floats(0, 0.4))
def test_equals_the_loop(r: Rankings, beta: float, smoothing: float) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()

    def loss(p: int, i: int, j: int) -> torch.Tensor:
        h = beta * ((slow[p, i] - r.ref_logprobs[p, i]) - (slow[p, j] - r.ref_logprobs[p, j]))
        return -(1 - smoothing) * torch.log(1 / (1 + torch.exp(-h))) - smoothing * torch.log(
            1 / (1 + torch.exp(h))
        )

    actual, expected = call(Sigmoid(beta, smoothing), r, fast), r.over_pairs(loss)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual.sum(), fast), gradient(expected.sum(), slow))


@golden
@pytest.mark.parametrize(
    ("part", "name"),
    [(Sigmoid(0.1), "dpo_beta_0p1"), (Sigmoid(0.1, 0.1), "dpo_label_smoothing_0p1")],
)
def test_golden(part: Sigmoid, name: str) -> None:
    assert call(part, golden_pairs()).mean().item() == pytest.approx(
        GOLDEN["preference"][name], abs=1e-6
    )


def test_loss_at_the_reference_is_ln_2_with_a_gradient_of_half_beta() -> None:
    r = ranking(1, 2, seed=0)
    r = Rankings(
        r.ref_logprobs,
        r.ref_logprobs,
        torch.ones(1, 2, dtype=torch.long),
        torch.tensor([[1, 0]]),
        r.margin,
    )
    part = Sigmoid(0.3)
    value, grad = both(part, r)
    assert value.item() == pytest.approx(math.log(2), abs=1e-12)
    assert grad[0].tolist() == pytest.approx([0.15, -0.15])
    assert (part.reward(r.logprobs, r.ref_logprobs, r.num_tokens) == 0).all()


def test_loss_does_not_depend_on_response_lengths() -> None:
    """DPO uses summed log-probabilities, not means over tokens."""
    r = ranking(4, 2, seed=3)
    longer = Rankings(r.logprobs, r.ref_logprobs, r.num_tokens * 7, r.rank, r.margin)
    assert torch.equal(call(Sigmoid(), r), call(Sigmoid(), longer))
