from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.ratio import CISPO
from tests.support.batches import Batch, batches, few, gradient
from tests.support.reference import cispo, dense

BOUNDS = st.one_of(st.none(), st.floats(0, 0.5))


@few
@given(batches, BOUNDS, BOUNDS)
def test_equals_the_loop(b: Batch, low: float | None, high: float | None) -> None:
    fast, slow = b.log_ratio.clone().requires_grad_(), b.log_ratio.clone().requires_grad_()
    surrogate = CISPO(low, high)(fast, b.advantages, b.mask)
    field, clipped_slots = cispo(slow, b.advantages, b.mask, low, high)
    torch.testing.assert_close(surrogate.objective, dense(field, b.mask.shape))
    assert {tuple(x) for x in surrogate.clipped.nonzero().tolist()} == clipped_slots
    if field:
        torch.testing.assert_close(
            gradient(surrogate.objective.sum(), fast), gradient(sum(field.values()), slow)
        )


def test_every_token_keeps_a_gradient_with_a_bounded_weight() -> None:
    d = torch.tensor([[log(0.5), log(1.1), log(4.0)]] * 2, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0] * 3, [-1.0] * 3], dtype=torch.float64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    free_below = gradient(CISPO()(d, advantages, mask).objective.sum(), d)
    assert free_below.flatten().tolist() == pytest.approx([0.5, 1.1, 1.28, -0.5, -1.1, -1.28])
    both = gradient(CISPO(0.2, 0.28)(d, advantages, mask).objective.sum(), d)
    assert both[0].tolist() == pytest.approx([0.8, 1.1, 1.28])
