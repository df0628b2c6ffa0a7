import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.preference import IPO
from tests.preference.losses import both, call
from tests.preference.test_sigmoid import golden, golden_pairs
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, rankings
from tests.test_golden import GOLDEN


@few
@given(rankings, st.floats(0.01, 2))
def test_equals_the_loop(r: Rankings, beta: float) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()

    def loss(p: int, i: int, j: int) -> torch.Tensor:
        return (
            (slow[p, i] - slow[p, j])
            - (r.ref_logprobs[p, i] - r.ref_logprobs[p, j])
            - 1 / (2 * beta)
        ) ** 2

    actual, expected = call(IPO(beta), r, fast), r.over_pairs(loss)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual.sum(), fast), gradient(expected.sum(), slow))


@golden
def test_golden() -> None:
    assert call(IPO(0.1), golden_pairs()).mean().item() == pytest.approx(
        GOLDEN["preference"]["ipo_sum_tau_0p1"], abs=1e-6
    )


def test_loss_and_gradient_are_0_at_the_target_gap() -> None:
    logprobs, ref = (
        torch.tensor([[-2.0, -7.0]], dtype=torch.float64),
        torch.full((1, 2), -4.0, dtype=torch.float64),
    )
    r = Rankings(
        logprobs, ref, torch.ones(1, 2, dtype=torch.long), torch.tensor([[0, 1]]), torch.zeros(1)
    )
    value, grad = both(IPO(0.1), r)
    assert (value == 0).all()
    assert (grad == 0).all()


def test_reward_is_the_scaled_log_ratio() -> None:
    logprobs = torch.tensor([[-2.0, -7.0]], dtype=torch.float64)
    ref_logprobs = torch.tensor([[-4.0, -3.0]], dtype=torch.float64)
    reward = IPO(0.5).reward(logprobs, ref_logprobs, torch.ones(1, 2, dtype=torch.long))
    assert reward.tolist() == [[1.0, -2.0]]
