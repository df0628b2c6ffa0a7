import torch
from hypothesis import given, strategies as st

from rlmods.preference import SimPO
from tests.preference.losses import call
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, ranking, rankings


@few
@given(rankings, st.floats(0.01, 3), st.floats(0, 2))
def test_equals_the_loop(r: Rankings, beta: float, gamma: float) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()

    def loss(p: int, i: int, j: int) -> torch.Tensor:
        h = beta * slow[p, i] / r.num_tokens[p, i] - beta * slow[p, j] / r.num_tokens[p, j] - gamma
        return torch.log(1 + torch.exp(-h))

    actual, expected = call(SimPO(beta, gamma), r, fast), r.over_pairs(loss)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual.sum(), fast), gradient(expected.sum(), slow))


def test_doubling_length_and_log_probability_keeps_the_loss() -> None:
    r = ranking(4, 3, seed=3)
    longer = Rankings(r.logprobs * 2, r.ref_logprobs, r.num_tokens * 2, r.rank, r.margin)
    torch.testing.assert_close(call(SimPO(), r), call(SimPO(), longer))
