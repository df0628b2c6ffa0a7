import pytest
import torch

from rlmods.aggregation import FixedLength
from rlmods.types import Totals


def test_divides_by_the_constant_length_and_not_by_the_width() -> None:
    x, mask = (
        torch.ones(2, 3, dtype=torch.float64),
        torch.tensor([[True, True, False], [True, False, False]]),
    )
    assert FixedLength(10)(x, mask, Totals(3.0, 2.0)).item() == pytest.approx(3 / 20)
