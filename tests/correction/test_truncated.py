import torch
from hypothesis import given, strategies as st

from rlmods.correction import Truncated
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import correction, dense


@few
@given(batches, st.sampled_from(["token", "sequence"]), st.floats(1.0, 3.0))
def test_equals_the_loop(b: Batch, level: str, high: float) -> None:
    behavior = b.values - b.log_ratio
    found = Truncated(high, level)(b.values, behavior, b.mask)  # type: ignore[arg-type]
    expected, outside = correction(b.values, behavior, b.mask, level, 0.0, high, masks=False)
    torch.testing.assert_close(
        torch.where(b.mask, found.weights, 0.0), dense(expected, b.mask.shape)
    )
    assert {tuple(x) for x in found.outside.nonzero().tolist()} == outside


def test_bounds_from_above_only() -> None:
    ratio = torch.tensor([[1e-6, 0.3, 1.0, 1.99, 2.01, 1e6]], dtype=torch.float64)
    found = Truncated()(ratio.log(), torch.zeros_like(ratio), torch.ones(1, 6, dtype=torch.bool))
    torch.testing.assert_close(found.weights, ratio.clamp(max=2.0))
    assert found.outside.tolist() == [[False, False, False, False, True, True]]


def test_a_higher_bound_never_lowers_a_weight() -> None:
    b = batch(8, 7, seed=3)
    low, high = (
        Truncated(bound)(b.log_ratio, torch.zeros_like(b.values), b.mask) for bound in (1.1, 1.5)
    )
    assert (high.weights >= low.weights).all()
    assert low.outside.sum() > high.outside.sum() > 0
