import torch
from hypothesis import given

from rlmods.ratio import LogLikelihood
from tests.support.batches import Batch, batches, few, gradient
from tests.support.reference import dense, log_likelihood


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    d = b.log_ratio.clone().requires_grad_()
    surrogate = LogLikelihood()(d, b.advantages, b.mask)
    field, _ = log_likelihood(b.log_ratio, b.advantages, b.mask)
    torch.testing.assert_close(surrogate.objective, dense(field, b.mask.shape))
    assert not surrogate.clipped.any()


def test_gradient_is_the_advantage_at_any_distance_from_the_old_policy() -> None:
    d = torch.tensor([[-30.0, -1.0, 0.0, 1.0, 30.0]] * 2, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[2.0], [-3.0]], dtype=torch.float64).expand_as(d)
    surrogate = LogLikelihood()(d, advantages, torch.ones(2, 5, dtype=torch.bool))
    torch.testing.assert_close(gradient(surrogate.objective.sum(), d), advantages)
