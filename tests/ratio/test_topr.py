import pytest
import torch

from rlmods.ratio import TOPR, LogLikelihood
from tests.support.batches import batch, gradient


def test_positive_advantages_are_fine_tuned_on() -> None:
    b = batch(5, 6, seed=1)
    positive = b.advantages.abs() + 0.1
    assert torch.equal(
        TOPR()(b.log_ratio, positive, b.mask).objective,
        LogLikelihood()(b.log_ratio, positive, b.mask).objective,
    )


@pytest.mark.parametrize("drift", [-3.0, 3.0])
def test_weight_of_a_bad_response_is_the_product_of_its_ratios_and_at_most_1(drift: float) -> None:
    d = torch.full((1, 4), drift / 4, dtype=torch.float64, requires_grad=True)
    advantages, mask = -torch.ones(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.bool)
    grad = gradient(TOPR()(d, advantages, mask).objective.sum(), d)
    weight = min(1.0, float(torch.tensor(drift, dtype=torch.float64).exp()))
    torch.testing.assert_close(grad, torch.full_like(grad, -weight))
