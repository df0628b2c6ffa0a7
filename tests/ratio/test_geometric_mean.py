from math import exp

import pytest
import torch

from rlmods.aggregation import SequenceMean
from rlmods.ratio import Clipped, GeometricMean
from rlmods.types import Totals
from tests.support.batches import batch, gradient


@pytest.mark.parametrize(
    ("advantage", "logs", "mean", "unclipped"),
    [
        # A > 0: clipped only above
        (1.0, [0.9, -0.9, 0.1], (0.4 - 0.9 + 0.1) / 3, [False, True, True]),
        # A < 0: clipped only below
        (-1.0, [0.9, -0.9, 0.1], (0.9 - 0.3 + 0.1) / 3, [True, False, True]),
    ],
)
def test_the_sign_of_the_advantage_decides_which_side_is_clipped(
    advantage: float, logs: list, mean: float, unclipped: list
) -> None:
    d = torch.tensor([logs], dtype=torch.float64, requires_grad=True)
    surrogate = GeometricMean(0.3, 0.4)(
        d, torch.full_like(d, advantage), torch.ones(1, 3, dtype=torch.bool)
    )
    assert surrogate.objective[0].tolist() == pytest.approx([advantage * exp(mean)] * 3)
    assert surrogate.clipped[0].tolist() == [not x for x in unclipped]
    grad = gradient(
        SequenceMean()(surrogate.objective, torch.ones(1, 3, dtype=torch.bool), Totals(3.0, 1.0)), d
    )
    assert grad[0].tolist() == pytest.approx([advantage * exp(mean) / 3 * x for x in unclipped])


def test_ratios_are_clipped_before_the_mean() -> None:
    """Log-ratios 3 and -2: their mean is -0.8 if each is clipped to 0.4 first, else 0.5, which is
    above the bound."""
    d, mask = torch.tensor([[3.0, -2.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    assert GeometricMean()(d, torch.ones_like(d), mask).objective[0].tolist() == pytest.approx(
        [exp(-0.8)] * 2
    )
    assert Clipped(1 - exp(-0.4), exp(0.4) - 1, "sequence")(d, torch.ones_like(d), mask).objective[
        0, 0
    ].item() == pytest.approx(exp(0.4))


def test_without_bounds_equals_gspo_without_a_clip() -> None:
    b = batch(6, 6, seed=9)
    results = []
    for ratio in (GeometricMean(torch.inf, torch.inf), Clipped(1.0, 1e9, "sequence")):
        d = b.log_ratio.clone().requires_grad_()
        objective = ratio(d, b.advantages, b.mask).objective
        results.append(
            (
                torch.where(b.mask, objective.detach(), 0),
                gradient(SequenceMean()(objective, b.mask, b.totals), d),
            )
        )
    torch.testing.assert_close(results[0], results[1])


def test_one_token_equals_ppo_with_bounds_in_log_space() -> None:
    b = batch(9, 6, seed=9)
    mask = b.mask & (b.mask.cumsum(1) == 1)
    gmpo, ppo = (
        r(b.log_ratio, b.advantages, mask)
        for r in (GeometricMean(0.3, 0.4), Clipped(1 - exp(-0.3), exp(0.4) - 1))
    )
    torch.testing.assert_close(gmpo.objective[mask], ppo.objective[mask])
    assert torch.equal(gmpo.clipped, ppo.clipped)
    assert gmpo.clipped.any()
