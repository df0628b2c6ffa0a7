from math import log

import pytest
import torch
from hypothesis import strategies as st

from rlmods.ops import binary_divergence
from rlmods.ratio import DPPO, Unclipped
from tests.support.batches import batch, gradient

BOUNDS = st.floats(1e-3, 0.3)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_distance_is_that_of_two_bernoulli_distributions(divergence: str) -> None:
    old = torch.tensor([[0.9, 0.5, 0.01, 1.0]], dtype=torch.float64)
    new = torch.tensor([[0.5, 0.5, 0.03, 0.7]], dtype=torch.float64)
    p, q = (torch.distributions.Bernoulli(x.clamp(max=1 - 1e-7)) for x in (old, new))
    expected = (old - new).abs() if divergence == "tv" else torch.distributions.kl_divergence(p, q)
    torch.testing.assert_close(
        binary_divergence(divergence, old.log(), (new / old).log()), expected, rtol=1e-5, atol=1e-7
    )


def test_a_rare_token_may_change_by_a_large_factor_and_a_frequent_one_may_not() -> None:
    d = torch.tensor([[log(5.0), log(0.98 / 0.8)]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[0.001, 0.8]], dtype=torch.float64).log()
    ones, mask = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    surrogate = DPPO()(d, ones, mask, old)
    assert surrogate.clipped.tolist() == [[False, True]]
    torch.testing.assert_close(
        gradient(surrogate.objective.sum(), d), torch.tensor([[5.0, 0.0]], dtype=torch.float64)
    )
    assert not DPPO()(d, -ones, mask, old).clipped.any()  # back towards the old policy


def test_without_bounds_is_the_plain_ratio() -> None:
    b = batch(5, 6, seed=1)
    wide = DPPO(low=1.1, high=1.1)(b.log_ratio, b.advantages, b.mask, b.old_logprobs)
    torch.testing.assert_close(
        wide.objective, Unclipped()(b.log_ratio, b.advantages, b.mask).objective
    )
