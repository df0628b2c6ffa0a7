from math import log

import pytest
import torch
from hypothesis import strategies as st

from rlmods.ratio import CISPO
from tests.support.batches import gradient

BOUNDS = st.one_of(st.none(), st.floats(0, 0.5))


def test_every_token_keeps_a_gradient_with_a_bounded_weight() -> None:
    d = torch.tensor([[log(0.5), log(1.1), log(4.0)]] * 2, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0] * 3, [-1.0] * 3], dtype=torch.float64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    free_below = gradient(CISPO()(d, advantages, mask).objective.sum(), d)
    assert free_below.flatten().tolist() == pytest.approx([0.5, 1.1, 1.28, -0.5, -1.1, -1.28])
    both = gradient(CISPO(0.2, 0.28)(d, advantages, mask).objective.sum(), d)
    assert both[0].tolist() == pytest.approx([0.8, 1.1, 1.28])
