"""The importance ratio of trainer over sampler: exact expectations, and what every part inherits
from it."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.correction import Masked, Truncated
from rlmods.protocols import Correction
from tests.correction.distributions import BEHAVIOR, FUNCTION, OLD
from tests.support.batches import Batch, batch, batches, few

PARTS = {
    f"{kind.__name__} {level}": kind(level=level)
    for kind in (Truncated, Masked)
    for level in ("token", "sequence")
}
every_part = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)


def weights(part: Correction, b: Batch) -> torch.Tensor:
    found = part(b.values, b.values - b.log_ratio, b.mask)
    assert found is not None
    return found.weights


@every_part
class TestWeights:
    def test_are_exactly_1_where_the_logprobs_are_equal(self, part: Correction) -> None:
        b = batch(8, 7, seed=1)
        for dtype in (torch.float32, torch.float64):
            found = part(b.values.to(dtype), b.values.to(dtype), b.mask)
            assert found is not None
            assert found.weights.dtype == dtype
            assert (found.weights == 1).all()
            assert not found.outside.any()

    def test_have_no_gradient(self, part: Correction) -> None:
        b = batch(8, 7, seed=1)
        found = part(
            b.values.clone().requires_grad_(), (b.values - b.log_ratio).requires_grad_(), b.mask
        )
        assert found is not None
        assert not found.weights.requires_grad

    @few
    @given(batches)
    def test_do_not_depend_on_masked_slots(self, part: Correction, b: Batch) -> None:
        poisoned, behavior = b.poisoned(), b.values - b.log_ratio
        for old, other in (
            (poisoned.values, behavior),
            (b.values, torch.where(b.mask, behavior, poisoned.rewards)),
        ):
            found = part(old, other, b.mask)
            assert found is not None
            assert torch.equal(found.weights, weights(part, b))
            assert (found.weights[~b.mask] == 1).all()
            assert not found.outside[~b.mask].any()

    @few
    @given(batches, st.integers(1, 50))
    def test_do_not_depend_on_padding_and_other_rows(
        self, part: Correction, b: Batch, columns: int
    ) -> None:
        expected = weights(part, b)
        wide = weights(part, b.padded(columns))
        torch.testing.assert_close(wide[:, : b.mask.shape[1]], expected)
        for i in range(len(expected)):
            torch.testing.assert_close(weights(part, b.select(torch.tensor([i])))[0], expected[i])

    @pytest.mark.parametrize("extreme", [-1e4, -100.0, 100.0, 1e4, -math.inf])
    def test_stay_finite_at_extreme_ratios_in_float32(
        self, part: Correction, extreme: float
    ) -> None:
        """-inf: the trainer gives the token a probability of 0."""
        found = part(
            torch.full((2, 3), extreme), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
        )
        assert found is not None
        assert found.weights.isfinite().all()
        if extreme < 0:
            assert (found.weights < 1e-40).all()


class TestExpectation:
    """By enumeration, with bounds that no ratio reaches: E_behavior[w f] is E_old[f]."""

    PROBABILITY = BEHAVIOR.sum(1).exp()
    MASK = torch.ones(BEHAVIOR.shape, dtype=torch.bool)

    def weighted(self, part: Correction) -> torch.Tensor:
        """Return E_behavior[w f] of each of the two tokens."""
        found = part(OLD, BEHAVIOR, self.MASK)
        assert found is not None
        return (self.PROBABILITY[:, None] * found.weights * FUNCTION).sum(0)

    @pytest.mark.parametrize(
        "kind", [Truncated(high=1e6, level="sequence"), Masked(low=0.0, high=1e6, level="sequence")]
    )
    def test_is_that_of_the_trainers_responses(self, kind: Correction) -> None:
        expected = (OLD.sum(1).exp()[:, None] * FUNCTION).sum(0)
        torch.testing.assert_close(self.weighted(kind), expected)
        assert ((self.PROBABILITY[:, None] * FUNCTION).sum(0) - expected).abs().min() > 1e-3, (
            "the weights matter"
        )

    @pytest.mark.parametrize("kind", [Truncated(high=1e6), Masked(low=0.0, high=1e6)])
    def test_by_token_is_that_of_the_trainers_tokens_after_the_samplers_prefixes(
        self, kind: Correction
    ) -> None:
        expected = (torch.exp(BEHAVIOR[:, 0] + OLD[:, 1]) * FUNCTION[:, 1]).sum()
        torch.testing.assert_close(self.weighted(kind)[1], expected)
        assert (expected - (OLD.sum(1).exp() * FUNCTION[:, 1]).sum()).abs() > 1e-3, (
            "not that of the trainer's responses"
        )

    @pytest.mark.parametrize("level", ["token", "sequence"])
    def test_of_the_weights_is_1(self, level: str) -> None:
        found = Truncated(high=1e6, level=level)(OLD, BEHAVIOR, self.MASK)  # type: ignore[arg-type]
        torch.testing.assert_close(
            (self.PROBABILITY[:, None] * found.weights).sum(0), torch.ones(2, dtype=torch.float64)
        )


def test_the_ratio_of_a_response_is_the_product_not_the_geometric_mean() -> None:
    d, mask = (
        torch.tensor([[0.1, 0.2, 9.0, 0.3]], dtype=torch.float64),
        torch.tensor([[True, True, False, True]]),
    )
    found = Truncated(level="sequence")(d, torch.zeros_like(d), mask).weights
    torch.testing.assert_close(found[mask], torch.full((3,), math.exp(0.6), dtype=torch.float64))
