from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.aggregation import SequenceMean
from rlmods.ratio import Clipped, GeometricMean
from rlmods.types import Totals
from tests.support.batches import Batch, batch, batches, few, gradient
from tests.support.reference import dense, geometric_mean


@few
@given(batches, st.floats(0, 0.6), st.floats(0, 0.6))
def test_equals_the_loop(b: Batch, low: float, high: float) -> None:
    fast, slow = b.log_ratio.clone().requires_grad_(), b.log_ratio.clone().requires_grad_()
    surrogate = GeometricMean(low, high)(fast, b.advantages, b.mask)
    field, decided = geometric_mean(slow, b.advantages, b.mask, low, high)
    torch.testing.assert_close(surrogate.objective, dense(field, b.mask.shape))
    assert {tuple(x) for x in surrogate.clipped.nonzero().tolist()} == decided
    if field:
        torch.testing.assert_close(gradient(surrogate.objective.sum(), fast), gradient(sum(field.values()), slow))


@pytest.mark.parametrize(
    ("advantage", "logs", "mean", "free"),
    [
        (1.0, [0.9, -0.9, 0.1], (0.4 - 0.9 + 0.1) / 3, [False, True, True]),  # good: held back above alone
        (-1.0, [0.9, -0.9, 0.1], (0.9 - 0.3 + 0.1) / 3, [True, False, True]),  # bad: held back below alone
    ],
)
def test_the_sign_of_the_advantage_says_which_side_is_clipped(advantage: float, logs: list, mean: float, free: list) -> None:
    d = torch.tensor([logs], dtype=torch.float64, requires_grad=True)
    surrogate = GeometricMean(0.3, 0.4)(d, torch.full_like(d, advantage), torch.ones(1, 3, dtype=torch.bool))
    assert surrogate.objective[0].tolist() == pytest.approx([advantage * exp(mean)] * 3)
    assert surrogate.clipped[0].tolist() == [not x for x in free]
    grad = gradient(SequenceMean()(surrogate.objective, torch.ones(1, 3, dtype=torch.bool), Totals(3.0, 1.0)), d)
    assert grad[0].tolist() == pytest.approx([advantage * exp(mean) / 3 * x for x in free])


def test_clipping_comes_before_the_mean_and_not_after_it() -> None:
    """Logs 3 and -2: clipped one by one their mean is -0.8, and that of the whole is 0.5 > 0.4."""
    d, mask = torch.tensor([[3.0, -2.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    assert GeometricMean()(d, torch.ones_like(d), mask).objective[0].tolist() == pytest.approx([exp(-0.8)] * 2)
    assert Clipped(1 - exp(-0.4), exp(0.4) - 1, "sequence")(d, torch.ones_like(d), mask).objective[0, 0].item() == pytest.approx(exp(0.4))


def test_without_bounds_it_is_gspo_without_a_clip() -> None:
    b = batch(6, 6, seed=9)
    found = []
    for ratio in (GeometricMean(torch.inf, torch.inf), Clipped(1.0, 1e9, "sequence")):
        d = b.log_ratio.clone().requires_grad_()
        objective = ratio(d, b.advantages, b.mask).objective
        found.append((torch.where(b.mask, objective.detach(), 0), gradient(SequenceMean()(objective, b.mask, b.totals), d)))
    torch.testing.assert_close(found[0], found[1])


def test_at_one_token_it_is_ppo_with_bounds_in_logs() -> None:
    b = batch(9, 6, seed=9)
    mask = b.mask & (b.mask.cumsum(1) == 1)
    mine, ppo = (r(b.log_ratio, b.advantages, mask) for r in (GeometricMean(0.3, 0.4), Clipped(1 - exp(-0.3), exp(0.4) - 1)))
    torch.testing.assert_close(mine.objective[mask], ppo.objective[mask])
    assert torch.equal(mine.clipped, ppo.clipped)
    assert mine.clipped.any()


@pytest.mark.parametrize("field", ["low", "high"])
@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_bad_fields_are_refused_by_name(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match=field):
        GeometricMean(**{field: bad})
