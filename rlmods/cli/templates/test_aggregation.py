"""Run with `make test ARGS=plugins/name`."""

import pytest
import torch

from rlmods.aggregation import SequenceMean
from rlmods.cli.templates.aggregation import Name
from rlmods.types import Totals

X = torch.tensor([[1.0, 2.0, 3.0, 4.0], [8.0, torch.nan, torch.nan, torch.nan]])
MASK = ~X.isnan()
TOTALS = Totals(5.0, 2.0)


def test_power_1_is_the_mean_of_each_response() -> None:
    assert Name(power=1.0)(X, MASK, TOTALS) == SequenceMean()(X, MASK, TOTALS)


def test_power_0_is_the_sum_of_each_response() -> None:
    assert Name(power=0.0)(X, MASK, TOTALS).item() == pytest.approx(9.0)
