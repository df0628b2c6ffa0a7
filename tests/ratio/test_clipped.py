from dataclasses import replace
from math import exp, log

import pytest
import torch
from hypothesis import given

from rlmods.aggregation import SequenceMean, TokenMean
from rlmods.ratio import Clipped, Unclipped
from rlmods.types import Totals
from tests.support.batches import Batch, batch, batches, few, gradient

LEVELS = ["token", "sequence", "sequence_token"]
TRUE = torch.ones(1, 1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective", "slope"),
    [
        (1.0, 0.5, 0.5, 0.5),  # A > 0 and less likely than before: not clipped
        (1.0, 1.5, 1.28, 0.0),  # A > 0 and already more likely: clipped at the upper bound
        (-1.0, 0.5, -0.8, 0.0),  # A < 0 and already less likely: clipped at the lower bound
        (-1.0, 1.5, -1.5, -1.5),  # A < 0 and more likely than before: not clipped
        (1.0, 1.25, 1.25, 1.25),  # between the bounds, above 1 + low
        (-1.0, 0.75, -0.8, 0.0),  # below 1 - low, above 1 - high
    ],
)
def test_four_quadrants(advantage: float, ratio: float, objective: float, slope: float) -> None:
    d = torch.tensor([[log(ratio)]], dtype=torch.float64, requires_grad=True)
    surrogate = Clipped(0.2, 0.28)(d, torch.full_like(d, advantage), TRUE)
    assert surrogate.objective.item() == pytest.approx(objective)
    assert gradient(surrogate.objective.sum(), d).item() == pytest.approx(slope)
    assert surrogate.clipped.item() == (slope == 0)


def test_dual_clip_bounds_only_negative_advantages_and_is_counted() -> None:
    d = torch.tensor([[log(5.0), log(2.0), log(5.0)]], dtype=torch.float64, requires_grad=True)
    surrogate = Clipped(dual=3.0)(
        d,
        torch.tensor([[-1.0, -1.0, 1.0]], dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.bool),
    )
    assert surrogate.objective[0].tolist() == pytest.approx([-3.0, -2.0, 1.2])
    assert gradient(surrogate.objective.sum(), d)[0].tolist() == pytest.approx([0.0, -2.0, 0.0])
    assert surrogate.clipped.tolist() == [[True, False, True]]


def test_objective_at_the_bound_of_dual_clip_is_not_clipped() -> None:
    d = torch.tensor([[log(3.0)]], dtype=torch.float64, requires_grad=True)
    surrogate = Clipped(dual=d.exp().item())(d, torch.full_like(d, -1.0), TRUE)
    assert not surrogate.clipped.any()
    assert gradient(surrogate.objective.sum(), d).item() == pytest.approx(-3.0)


def test_worked_example_of_token_and_sequence_level() -> None:
    """Ratios 2.0 and 0.4, A = 1: the geometric mean is in bounds; PPO's min gives (1.2 + 0.4) / 2,
    the clip alone (1.2 + 0.8) / 2."""
    d = torch.tensor([[log(2.0), log(0.4)]], dtype=torch.float64)
    ones, mask = torch.ones_like(d), torch.ones(1, 2, dtype=torch.bool)
    sequence, token = Clipped(level="sequence")(d, ones, mask), Clipped()(d, ones, mask)
    assert sequence.objective[0].tolist() == pytest.approx([0.894, 0.894], abs=5e-4)
    assert not sequence.clipped.any()
    assert TokenMean()(token.objective, mask, Totals(2.0, 1.0)).item() == pytest.approx(0.8)
    clip_alone = d.exp().clamp(0.8, 1.2).mean().item()
    assert clip_alone == pytest.approx(1.0)


def test_sequence_level_clips_once_per_response() -> None:
    """Ratios e^3, e^-3, e^0.6: geometric mean e^0.2, clipped to 1.2; clipping by token gives
    another mean."""
    d = torch.tensor([[3.0, -3.0, 0.6]], dtype=torch.float64)
    ones, mask = torch.ones_like(d), torch.ones(1, 3, dtype=torch.bool)
    assert Clipped(level="sequence")(d, ones, mask).objective[0].tolist() == pytest.approx(
        [1.2] * 3
    )
    assert Clipped()(d, ones, mask).objective.mean().item() == pytest.approx(
        (1.2 + exp(-3) + 1.2) / 3
    )


def test_sequence_gradient_equals_the_closed_form() -> None:
    """The gradient d s A / d log_ratio_t is s A / |y| for each of the |y| tokens (GSPO, equation
    10)."""
    b = batch(5, 6, seed=4)
    d = b.log_ratio.clone().requires_grad_()
    advantages = b.advantages[:, :1].expand_as(d)
    objective = Clipped(1.0, 1e9, "sequence")(d, advantages, b.mask).objective
    size = b.mask.sum(1, keepdim=True).clamp(min=1)
    s = (torch.where(b.mask, b.log_ratio, 0).sum(1, keepdim=True) / size).exp()
    grad = gradient(SequenceMean()(objective, b.mask, Totals(1.0, 1.0)), d)
    torch.testing.assert_close(grad, torch.where(b.mask, s * advantages / size, 0))


def test_sequence_token_equals_sequence_when_a_response_has_one_advantage() -> None:
    b = batch(6, 6, seed=8)
    advantages = b.advantages[:, :1].expand_as(b.mask)
    results = []
    for level in ("sequence", "sequence_token"):
        d = b.log_ratio.clone().requires_grad_()
        objective = Clipped(0.1, 0.1, level)(d, advantages, b.mask).objective
        results.append(
            (objective.detach(), gradient(SequenceMean()(objective, b.mask, b.totals), d))
        )
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("level", LEVELS[1:])
@few
@given(batches)
def test_levels_agree_for_responses_of_one_token(level: str, b: Batch) -> None:
    b = replace(b, mask=b.mask & (b.mask.cumsum(1) == 1))
    token, other = (
        Clipped()(b.log_ratio, b.advantages, b.mask),
        Clipped(level=level)(b.log_ratio, b.advantages, b.mask),
    )
    torch.testing.assert_close(other.objective, token.objective)
    assert torch.equal(other.clipped, token.clipped)


def test_sequence_equals_token_when_all_ratios_of_a_response_are_equal() -> None:
    b = batch(6, 6, seed=9)
    d = b.log_ratio[:, :1].expand_as(b.mask)
    sequence, token = (
        Clipped(level="sequence")(d, b.advantages, b.mask),
        Clipped()(d, b.advantages, b.mask),
    )
    torch.testing.assert_close(sequence.objective, token.objective)
    assert torch.equal(sequence.clipped, token.clipped)


def test_low_and_high_are_not_interchangeable() -> None:
    b = batch(6, 6, seed=9)
    one, other = (
        Clipped(0.1, 0.3)(b.log_ratio, b.advantages, b.mask),
        Clipped(0.3, 0.1)(b.log_ratio, b.advantages, b.mask),
    )
    assert not torch.equal(one.clipped, other.clipped)


def test_very_wide_bounds_equal_unclipped() -> None:
    b = batch(6, 6, seed=9)
    wide, none = (
        Clipped(1.0, 1e9)(b.log_ratio, b.advantages, b.mask),
        Unclipped()(b.log_ratio, b.advantages, b.mask),
    )
    torch.testing.assert_close(wide.objective, none.objective)


def test_an_advantage_of_0_is_not_counted_as_clipped() -> None:
    d = torch.tensor([[2.0]])
    assert not Clipped()(d, torch.zeros_like(d), TRUE).clipped.any()
