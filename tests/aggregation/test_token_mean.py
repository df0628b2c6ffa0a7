import torch

from rlmods.aggregation import TokenMean
from rlmods.types import Totals
from tests.support.batches import gradient


def test_weights_of_a_long_and_a_short_response_are_the_same() -> None:
    """200 and 10 tokens: weight 1/210 for each token."""
    mask = torch.arange(200) < torch.tensor([[200], [10]])
    x = torch.zeros(2, 200, dtype=torch.float64, requires_grad=True)
    grad = gradient(TokenMean()(x, mask, Totals(210.0, 2.0)), x)
    torch.testing.assert_close(grad[mask], torch.full((210,), 1 / 210, dtype=torch.float64))


def test_totals_may_be_tensors() -> None:
    x, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    assert TokenMean()(x, mask, Totals(torch.tensor(12), torch.tensor(4))) == 0.5
