import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlmods.protocols import Controller
from rlmods.ratio import KLPenalty, Unclipped
from tests.support.batches import Batch, batches, few, gradient

OLD = torch.tensor([0.9, 0.2, -0.5, 0.0, 0.4], dtype=torch.float64).log_softmax(0)[None]
NEW = torch.tensor([0.3, -1.0, 0.8, 0.1, -0.4], dtype=torch.float64)
ARMS = torch.tensor([[1.0, 0.0, -1.0, 0.5, 0.2]], dtype=torch.float64)
EVERY = torch.ones(1, 5, dtype=torch.bool)


def old_to_new(logprobs: Tensor) -> Tensor:
    """Return KL(pi_old || pi), by enumeration."""
    return (OLD.exp() * (OLD - logprobs)).sum()


def best_response(part: KLPenalty, steps: int = 200) -> float:
    """Return the KL after maximising the expectation of the objective over pi_old."""
    logits = OLD[0].clone().requires_grad_()
    for _ in range(steps):
        objective = (
            OLD.exp() * part(logits.log_softmax(0)[None] - OLD, ARMS, EVERY).objective
        ).sum()
        logits = (logits + 0.5 * gradient(objective, logits)).detach().requires_grad_()
    return old_to_new(logits.log_softmax(0)[None]).item()


def test_penalty_equals_the_kl_from_the_old_policy_in_value_and_gradient() -> None:
    """With A = 0 and beta = 1, the objective is minus the expectation of r - 1 - log r over
    pi_old."""
    logits = NEW.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[None]
    expected = -(
        OLD.exp()
        * KLPenalty(1.0)(logprobs - OLD, torch.zeros(1, 5, dtype=torch.float64), EVERY).objective
    ).sum()
    kl = old_to_new(logprobs)
    assert kl > 0.1
    torch.testing.assert_close(expected, kl)
    grad = gradient(expected, logits)
    assert grad.norm() > 0.1
    torch.testing.assert_close(grad, gradient(old_to_new(logits.log_softmax(0)[None]), logits))


@few
@given(batches)
def test_penalty_never_raises_the_objective(b: Batch) -> None:
    plain, penalised = (
        Unclipped()(b.log_ratio, b.advantages, b.mask),
        KLPenalty(0.7)(b.log_ratio, b.advantages, b.mask),
    )
    assert (penalised.objective <= plain.objective + 1e-12).all()
    torch.testing.assert_close(
        KLPenalty(0.0, minimum=0.0)(b.log_ratio, b.advantages, b.mask).objective, plain.objective
    )


def test_a_larger_coefficient_gives_a_smaller_kl_on_a_bandit() -> None:
    distances = [best_response(KLPenalty(beta)) for beta in (0.5, 1.0, 2.0, 4.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 5 * distances[-1] > 0


@pytest.mark.parametrize(
    ("distance", "factor"),
    [
        (0.0151, 2.0),
        (0.0149, 1.0),
        (0.01, 1.0),
        (0.0067, 1.0),
        (0.0066, 0.5),
        (0.0, 0.5),
        (9.0, 2.0),
        (float("nan"), 1.0),
    ],
)
def test_coefficient_is_doubled_or_halved_outside_of_the_band(
    distance: float, factor: float
) -> None:
    part = KLPenalty(3.0, target=0.01)
    part.on_iteration_end({"train/kl_update": distance})
    assert part.coefficient == 3.0 * factor


def test_coefficient_is_kept_without_the_metric() -> None:
    part = KLPenalty(3.0)
    part.on_iteration_end({"train/kl_ref": 9.0})
    assert part.coefficient == 3.0


@pytest.mark.parametrize(("distance", "bound"), [(0.0, 0.1), (9.0, 7.0)])
def test_coefficient_returns_from_its_bounds(distance: float, bound: float) -> None:
    part = KLPenalty(3.0, target=0.01, minimum=0.1, maximum=7.0)
    for _ in range(2000):
        part.on_iteration_end({"train/kl_update": distance})
    assert part.coefficient == bound
    part.on_iteration_end({"train/kl_update": 9.0 - distance})
    assert part.coefficient == (0.2 if bound == 0.1 else 3.5)


@pytest.mark.parametrize("start", [0.01, 4.0])
def test_coefficient_adapts_to_the_target_on_a_bandit(start: float) -> None:
    """The KL is proportional to 1 / beta^2, so doubling and halving beta reach the target only
    within this factor."""
    part = KLPenalty(start, target=0.05)
    for _ in range(15):
        part.on_iteration_end({"train/kl_update": (distance := best_response(part, steps=50))})
    assert 0.05 / 3 < distance < 0.05 * 3


def test_state_is_restored_exactly() -> None:
    part = KLPenalty(0.3)
    part.on_iteration_end({"train/kl_update": 1.0})
    other = KLPenalty(0.3)
    other.load_state_dict(part.state_dict())
    assert other == part
    assert other.coefficient == 0.6
    assert isinstance(part, Controller)


def test_coefficient_may_start_at_its_bounds() -> None:
    assert KLPenalty(coefficient=2.0, maximum=2.0).coefficient == 2.0
    assert KLPenalty(coefficient=0.5, minimum=0.5).coefficient == 0.5
