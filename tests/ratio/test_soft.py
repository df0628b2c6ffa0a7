import pytest
import torch
from hypothesis import strategies as st

from rlmods.ratio import Soft
from tests.support.batches import gradient

TEMPERATURES = st.floats(0.1, 5)


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.05, 10.0])
@pytest.mark.parametrize("advantage", [-2.0, 3.0])
def test_gradient_at_ratio_1_is_the_advantage_for_every_temperature(
    tau: float, advantage: float
) -> None:
    d = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    surrogate = Soft(tau, tau)(d, torch.full_like(d, advantage), torch.ones(1, 1, dtype=torch.bool))
    assert gradient(surrogate.objective.sum(), d).item() == pytest.approx(advantage)


def test_gradient_decays_on_both_sides_and_faster_for_negative_advantages() -> None:
    d = torch.tensor([[0.0, 1.0, 1.5]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 3, dtype=torch.bool)
    slopes = []
    for advantage in (1.0, -1.0):
        grad = gradient(Soft(1.0, 2.0)(d, torch.full_like(d, advantage), mask).objective.sum(), d)
        slopes.append((grad / d.exp()).abs()[0])
    assert slopes[0][0] > slopes[0][1] > slopes[0][2] > 0
    assert (slopes[1][1:] < slopes[0][1:]).all()
