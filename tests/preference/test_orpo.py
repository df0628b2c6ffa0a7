import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.preference import ORPO
from tests.preference.losses import call
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, rankings


@few
@given(rankings, st.floats(0.01, 3))
def test_equals_the_loop(r: Rankings, beta: float) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()

    def odds(p: int, k: int) -> torch.Tensor:
        probability = torch.exp(slow[p, k] / r.num_tokens[p, k])
        return probability / (1 - probability)

    expected = beta * r.over_pairs(lambda p, i, j: torch.log(1 + odds(p, j) / odds(p, i)))
    for p in range(len(r.rank)):
        best = [k for k in range(r.rank.shape[1]) if r.present[p, k] and r.rank[p, k] == 0]
        expected = expected + torch.eye(len(r.rank), dtype=torch.float64)[p] * sum(
            -slow[p, k] / r.num_tokens[p, k] / len(best) for k in best
        )
    actual = call(ORPO(beta), r, fast)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual.sum(), fast), gradient(expected.sum(), slow))


def test_reward_is_the_scaled_log_odds() -> None:
    logprobs = torch.tensor([[-1.2]], dtype=torch.float64)
    p = torch.tensor(-0.4, dtype=torch.float64).exp()
    assert ORPO(0.5).reward(logprobs, None, torch.tensor([[3]])).item() == pytest.approx(
        0.5 * (p / (1 - p)).log().item()
    )


def test_it_needs_no_reference() -> None:
    assert not ORPO.needs.reference
