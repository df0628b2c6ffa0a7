import torch

from rlmods.aggregation import SequenceMean
from rlmods.types import Totals
from tests.support.batches import gradient


def test_weights_of_a_long_and_a_short_response() -> None:
    """200 and 10 tokens: weight 1/400 for each token of the long response, 1/20 for each of the
    short one."""
    mask = torch.arange(200) < torch.tensor([[200], [10]])
    x = torch.zeros(2, 200, dtype=torch.float64, requires_grad=True)
    grad = gradient(SequenceMean()(x, mask, Totals(210.0, 2.0)), x)
    torch.testing.assert_close(grad[0], torch.full((200,), 1 / 400, dtype=torch.float64))
    torch.testing.assert_close(grad[1, :10], torch.full((10,), 1 / 20, dtype=torch.float64))


def test_a_row_without_tokens_does_not_count_as_a_response() -> None:
    x, mask = torch.full((2, 3), 6.0), torch.tensor([[True, True, False], [False, False, False]])
    assert SequenceMean()(x, mask, Totals(2.0, 1.0)) == 6
