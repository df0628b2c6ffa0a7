"""Every aggregation against a slow loop."""

from typing import Any

import pytest
import torch
from hypothesis import given

from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from tests.support.batches import Batch, batches, few
from tests.support.reference import aggregate, true_slots

PARTS = {
    "token_mean": TokenMean(),
    "sequence_mean": SequenceMean(),
    "fixed_length": FixedLength(9),
}


@pytest.mark.parametrize(("name", "part"), PARTS.items(), ids=PARTS)
@few
@given(batches)
def test_equals_the_loop(name: str, part: Any, b: Batch) -> None:
    field = {(i, t): b.values[i, t] for i, ts in enumerate(true_slots(b.mask)) for t in ts}
    expected = aggregate(name, field, b.totals.tokens, b.totals.sequences, 9)
    torch.testing.assert_close(part(b.values, b.mask, b.totals), expected)
