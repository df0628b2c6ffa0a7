import torch
from hypothesis import given

from rlmods.aggregation import SequenceMean
from rlmods.types import Totals
from tests.support.batches import Batch, batches, few, gradient
from tests.support.reference import aggregate, true_slots


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    field = {(i, t): b.values[i, t] for i, ts in enumerate(true_slots(b.mask)) for t in ts}
    tokens, sequences = b.totals.tokens, b.totals.sequences
    torch.testing.assert_close(
        SequenceMean()(b.values, b.mask, b.totals),
        aggregate("sequence_mean", field, tokens, sequences),
    )


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
