import pytest
import torch
from hypothesis import given

from rlmods.aggregation import FixedLength
from rlmods.types import Totals
from tests.support.batches import Batch, batches, few
from tests.support.reference import aggregate, true_slots


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    field = {(i, t): b.values[i, t] for i, ts in enumerate(true_slots(b.mask)) for t in ts}
    expected = aggregate("fixed_length", field, b.totals.tokens, b.totals.sequences, 9)
    torch.testing.assert_close(FixedLength(9)(b.values, b.mask, b.totals), expected)


def test_divides_by_the_constant_length_and_not_by_the_width() -> None:
    x, mask = (
        torch.ones(2, 3, dtype=torch.float64),
        torch.tensor([[True, True, False], [True, False, False]]),
    )
    assert FixedLength(10)(x, mask, Totals(3.0, 2.0)).item() == pytest.approx(3 / 20)
