"""Invariances of the loss and its gradient, for every ratio with every aggregation."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.needs import RatioNeeds, needs_of
from rlmods.protocols import Aggregation, Ratio
from rlmods.ratio import (
    CISPO,
    DPPO,
    TOPR,
    Clipped,
    GeometricMean,
    KLPenalty,
    LogLikelihood,
    Soft,
    Unclipped,
)
from rlmods.types import Surrogate, Totals
from tests.support.batches import Batch, batch, batches, few, gradient

RATIOS = {
    "symmetric": Clipped(),
    "clip_higher": Clipped(0.2, 0.28),
    "dual": Clipped(dual=1.5),
    "sequence": Clipped(0.05, 0.08, "sequence"),
    "sequence_token": Clipped(0.05, 0.08, "sequence_token"),
    "soft": Soft(),
    "cispo": CISPO(),
    "cispo_two_sided": CISPO(0.2, 0.28),
    "none": Unclipped(),
    "log_likelihood": LogLikelihood(),
    "kl_penalty": KLPenalty(0.5),
    "geometric_mean": GeometricMean(0.1, 0.2),
    "topr": TOPR(),
    "topr_token": TOPR(level="token"),
    "dppo": DPPO(low=0.1, high=0.1),
    "dppo_kl": DPPO("kl", low=0.02, high=0.02),
}
AGGREGATIONS = {
    "token_mean": TokenMean(),
    "sequence_mean": SequenceMean(),
    "fixed_length": FixedLength(16),
}


def loss_case(ratio: str, aggregation: str) -> object:
    """A ratio with an aggregation. They are independent, so the fast tests have each with one other
    part, and the slow ones all pairs."""
    is_quick = ratio == "symmetric" or aggregation == "token_mean"
    return pytest.param(
        RATIOS[ratio],
        AGGREGATIONS[aggregation],
        id=f"{ratio}-{aggregation}",
        marks=[] if is_quick else pytest.mark.slow,
    )


every_loss = pytest.mark.parametrize(
    ("ratio", "aggregation"), [loss_case(r, a) for r in RATIOS for a in AGGREGATIONS]
)


def surrogate(ratio: Ratio, d: Tensor, b: Batch, advantages: Tensor | None = None) -> Surrogate:
    """Return the ratio's output at the log-ratio d, by default with the advantages of the batch."""
    options = (
        {"old_logprobs": b.old_logprobs.to(d.dtype)}
        if needs_of(ratio, RatioNeeds).old_logprobs
        else {}
    )
    return ratio(d, b.advantages if advantages is None else advantages, b.mask, **options)


def loss(
    ratio: Ratio, aggregation: Aggregation, b: Batch, totals: Totals | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss -aggregation(objective), and its gradient with respect to the log-ratio."""
    d = b.log_ratio.clone().requires_grad_()
    value = -aggregation(surrogate(ratio, d, b).objective, b.mask, totals or b.totals)
    assert value.requires_grad
    return value.detach(), gradient(value, d)


@every_loss
def test_loss_and_gradient_are_not_0(ratio: Ratio, aggregation: Aggregation) -> None:
    b = batch(8, 7, seed=1)
    value, grad = loss(ratio, aggregation, b)
    assert value.abs() > 1e-3
    assert grad[b.mask].norm() > 1e-3
    assert (grad[~b.mask] == 0).all()


@every_loss
@few
@given(batches)
def test_values_in_masked_slots_change_no_bit(
    ratio: Ratio, aggregation: Aggregation, b: Batch
) -> None:
    poisoned = b.poisoned()
    for clean, dirty in zip(
        loss(ratio, aggregation, b), loss(ratio, aggregation, poisoned), strict=True
    ):
        assert torch.equal(clean, dirty)
    clean, dirty = (surrogate(ratio, x.log_ratio, x) for x in (b, poisoned))
    assert torch.equal(clean.objective, dirty.objective)
    assert torch.equal(clean.clipped, dirty.clipped)
    assert not clean.clipped[~b.mask].any()


@every_loss
@few
@given(batches, st.integers(1, 50))
def test_padding_width_changes_nothing(
    ratio: Ratio, aggregation: Aggregation, b: Batch, columns: int
) -> None:
    value, grad = loss(ratio, aggregation, b)
    wide, wide_grad = loss(ratio, aggregation, b.padded(columns))
    torch.testing.assert_close(wide, value)
    torch.testing.assert_close(wide_grad[:, : b.mask.shape[1]], grad)


@every_loss
@few
@given(batches, st.randoms(use_true_random=False))
def test_row_order_changes_nothing(
    ratio: Ratio, aggregation: Aggregation, b: Batch, random
) -> None:
    rows = torch.tensor(random.sample(range(len(b.mask)), len(b.mask)))
    value, grad = loss(ratio, aggregation, b)
    shuffled, shuffled_grad = loss(ratio, aggregation, b.select(rows))
    torch.testing.assert_close(shuffled, value)
    torch.testing.assert_close(shuffled_grad, grad[rows])


@every_loss
@few
@given(batches, st.integers(1, 8))
def test_microbatches_add_up(ratio: Ratio, aggregation: Aggregation, b: Batch, size: int) -> None:
    value, grad = loss(ratio, aggregation, b)
    parts = [
        loss(ratio, aggregation, b.select(rows), b.totals)
        for rows in torch.arange(len(b.mask)).split(size)
    ]
    torch.testing.assert_close(sum(v for v, _ in parts), value)
    torch.testing.assert_close(torch.cat([g for _, g in parts]), grad)


@every_loss
def test_loss_and_gradient_of_an_empty_mask_are_0(ratio: Ratio, aggregation: Aggregation) -> None:
    b = batch(4, 5, seed=2)
    without_loss = Batch(
        b.log_ratio, b.advantages, b.rewards, b.values, torch.zeros_like(b.mask), b.group
    ).poisoned()
    value, grad = loss(ratio, aggregation, without_loss)
    assert value == 0
    assert (grad == 0).all()


@pytest.mark.parametrize("ratio", RATIOS.values(), ids=RATIOS)
def test_on_policy_every_ratio_has_the_policy_gradient(ratio: Ratio) -> None:
    b = batch(8, 7, seed=5)
    d = torch.zeros_like(b.log_ratio, requires_grad=True)
    advantages = b.advantages.mean(1, keepdim=True).expand_as(d)
    output = surrogate(ratio, d, b, advantages)
    assert not output.clipped.any()
    assert not surrogate(ratio, d.float(), b, advantages.float()).clipped.any()
    grad = gradient(TokenMean()(output.objective, b.mask, b.totals), d)
    torch.testing.assert_close(grad, torch.where(b.mask, advantages, 0) / b.totals.tokens)


@pytest.mark.parametrize("ratio", RATIOS.values(), ids=RATIOS)
@pytest.mark.parametrize("extreme", [-200.0, -50.0, 50.0, 200.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_ratios_stay_finite_in_float32(
    ratio: Ratio, extreme: float, advantage: float
) -> None:
    d = torch.full((1, 2), extreme, requires_grad=True)
    a = torch.full((1, 2), advantage)
    objective = surrogate(
        ratio, d, Batch(d, a, a, a - 2, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1))
    ).objective
    assert objective.isfinite().all()
    assert gradient(objective.sum(), d).isfinite().all()
