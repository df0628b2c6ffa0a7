import torch
from hypothesis import given

from rlmods.ratio import Unclipped
from tests.support.batches import Batch, batches, few, gradient
from tests.support.reference import dense, unclipped


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    d = b.log_ratio.clone().requires_grad_()
    surrogate = Unclipped()(d, b.advantages, b.mask)
    field, _ = unclipped(b.log_ratio, b.advantages, b.mask)
    expected = dense(field, b.mask.shape)
    torch.testing.assert_close(surrogate.objective, expected)
    # exp is its own derivative
    torch.testing.assert_close(gradient(surrogate.objective.sum(), d), expected)
    assert not surrogate.clipped.any()
