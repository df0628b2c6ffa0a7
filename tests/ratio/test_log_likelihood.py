import torch

from rlmods.ratio import LogLikelihood
from tests.support.batches import gradient


def test_gradient_is_the_advantage_at_any_distance_from_the_old_policy() -> None:
    d = torch.tensor([[-30.0, -1.0, 0.0, 1.0, 30.0]] * 2, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[2.0], [-3.0]], dtype=torch.float64).expand_as(d)
    surrogate = LogLikelihood()(d, advantages, torch.ones(2, 5, dtype=torch.bool))
    torch.testing.assert_close(gradient(surrogate.objective.sum(), d), advantages)
