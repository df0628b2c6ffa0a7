from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.advantage import BranchNorm, GroupNorm
from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.ratio import Clipped, Unclipped
from rlmods.types import Totals
from tests.support.batches import few
from tests.support.reference import group_advantage
from tests.support.trees import Forest, forest, forests, hard

STAR = [0.0, 1.0, 4.0]
"""Rewards of three responses that share their first two tokens."""


def estimate(part: Any, f: Forest) -> Tensor:
    return part(f.rewards, f.mask, f.group, None, f.origin).advantages


class TestHard:
    @few
    @given(forests, st.floats(1e-8, 1e-2), st.booleans())
    def test_equals_the_loop(self, drawn: tuple[int, float], eps: float, unbiased: bool) -> None:
        f = forest(*drawn)
        expected = hard(f, group_advantage("group_norm", f.rewards, f.mask, f.group, eps, unbiased))
        torch.testing.assert_close(estimate(BranchNorm(eps, unbiased), f.poisoned()), expected)

    def test_a_branch_of_a_branch(self) -> None:
        """Column 0 is shared by all, column 1 by the last two."""
        rewards = torch.tensor([[0.0, 0, 0], [0, 0, 1.0], [0, 0, 2.0]], dtype=torch.float64)
        origin = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 1, 2]])
        advantages = BranchNorm()(
            rewards, rewards > -1, torch.zeros(3, dtype=torch.long), None, origin
        ).advantages
        torch.testing.assert_close(
            advantages,
            torch.tensor([[0.0, -1, -1], [0, 0.5, 0], [0, 0.5, 1]]).double(),
            atol=1e-5,
            rtol=0,
        )

    @few
    @given(st.integers(0, 10**6))
    def test_without_branches_it_is_group_norm_bit_for_bit(self, seed: int) -> None:
        f = forest(seed, branching=0.0)
        expected = GroupNorm()(f.rewards, f.mask, f.group).advantages
        assert torch.equal(estimate(BranchNorm(), f), expected)
        assert torch.equal(BranchNorm()(f.rewards, f.mask, f.group).advantages, expected)

    @few
    @given(forests)
    def test_values_in_masked_slots_change_no_bit(self, drawn: tuple[int, float]) -> None:
        f = forest(*drawn)
        assert torch.equal(estimate(BranchNorm(), f), estimate(BranchNorm(), f.poisoned()))
        assert (estimate(BranchNorm(), f)[~f.mask] == 0).all()

    @few
    @given(forests, st.integers(0, 10**6))
    def test_the_order_of_the_rows_changes_nothing(
        self, drawn: tuple[int, float], seed: int
    ) -> None:
        f = forest(*drawn)
        order = torch.randperm(len(f.mask), generator=torch.Generator().manual_seed(seed))
        in_order = estimate(BranchNorm(), f)[order]
        torch.testing.assert_close(estimate(BranchNorm(), f.select(order)), in_order)

    def test_origins_of_other_groups_are_other_responses(self) -> None:
        """Two prompts with equal origins: the advantages are those of each prompt alone."""
        f = forest(3)
        own = (f.group == f.group[0]).nonzero().flatten()
        assert 1 < len(own) < len(f.group)
        torch.testing.assert_close(
            estimate(BranchNorm(), f)[own], estimate(BranchNorm(), f.select(own))
        )

    def test_an_unscored_branch_is_left_out_of_the_mean(self) -> None:
        rewards, origin = (
            torch.tensor([[0.0, 0], [0, 1], [0, torch.nan]]),
            torch.tensor([[0, 0], [0, 1], [0, 2]]),
        )
        mask = torch.tensor([[True, True], [True, True], [False, False]])
        advantages = BranchNorm()(
            rewards, mask, torch.zeros(3, dtype=torch.long), None, origin
        ).advantages
        torch.testing.assert_close(
            advantages, torch.tensor([[0.0, -(0.5**0.5)], [0, 0.5**0.5], [0, 0]]), atol=1e-5, rtol=0
        )


@few
@given(forests)
def test_soft_is_group_norm_bit_for_bit(drawn: tuple[int, float]) -> None:
    f = forest(*drawn)
    assert torch.equal(
        estimate(BranchNorm(attribution="soft"), f),
        GroupNorm()(f.rewards, f.mask, f.group).advantages,
    )


def gradients(
    f: Forest, attribution: Any, ratio: Any, aggregation: Any, log_ratio: Tensor
) -> Tensor:
    """Gradient of the objective with respect to the log-probability of each token, summed over the
    rows that share it.

    `log_ratio` [n], by token identity: shared tokens have one log-probability."""
    x = log_ratio.clone().requires_grad_()
    slots = [(i, t, name) for i, row in enumerate(f.identity) for t, name in row.items()]
    rows, columns, names = (torch.tensor(part) for part in zip(*slots, strict=True))
    by_row = torch.zeros(f.mask.shape, dtype=torch.float64).index_put((rows, columns), x[names])
    surrogate = ratio(by_row, estimate(BranchNorm(attribution=attribution), f), f.mask)
    totals = Totals(f.mask.sum().clamp(min=1), f.mask.any(1).sum().clamp(min=1))
    [gradient] = torch.autograd.grad(aggregation(surrogate.objective, f.mask, totals), x)
    return gradient


class TestGradient:
    """A shared token counts once for each row, in the objective and in the denominators."""

    @few
    @given(forests, st.sampled_from([TokenMean(), FixedLength(7)]), st.integers(0, 10**6))
    def test_hard_and_soft_are_equal_where_rows_have_equal_weights(
        self, drawn: tuple[int, float], aggregation: Any, seed: int
    ) -> None:
        f = forest(*drawn)
        log_ratio = torch.randn(
            200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        soft, hard = (
            gradients(f, how, Unclipped(), aggregation, log_ratio) for how in ("soft", "hard")
        )
        torch.testing.assert_close(hard, soft)

    def test_also_with_clipping_as_long_as_the_policy_has_not_moved(self) -> None:
        f, still = forest(3), torch.zeros(200, dtype=torch.float64)
        soft, hard = (gradients(f, how, Clipped(), TokenMean(), still) for how in ("soft", "hard"))
        assert soft.abs().max() > 1e-2
        torch.testing.assert_close(hard, soft)

    @pytest.mark.parametrize(
        ("ratio", "aggregation"), [(Clipped(), TokenMean()), (Unclipped(), SequenceMean())]
    )
    def test_not_with_clipping_or_weights_by_length(self, ratio: Any, aggregation: Any) -> None:
        f, moved = forest(3), 0.5 * torch.ones(200, dtype=torch.float64)
        soft, hard = (gradients(f, how, ratio, aggregation, moved) for how in ("soft", "hard"))
        assert not torch.allclose(hard, soft)

    def test_is_that_of_every_row(self) -> None:
        """By hand: two rows share one token; each has one of its own. 4 tokens, of which the shared
        one counts twice."""
        rewards, mask = (
            torch.tensor([[0.0, 0], [0, 1]], dtype=torch.float64),
            torch.ones(2, 2, dtype=torch.bool),
        )
        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        for attribution in ("soft", "hard"):
            log_ratio = x[torch.tensor([[0, 1], [0, 2]])]
            part = BranchNorm(attribution=attribution)
            credit = part(
                rewards,
                mask,
                torch.zeros(2, dtype=torch.long),
                None,
                torch.tensor([[0, 0], [0, 1]]),
            )
            objective = TokenMean()(
                Unclipped()(log_ratio, credit.advantages + 1, mask).objective, mask, Totals(4, 2)
            )
            [gradient] = torch.autograd.grad(objective, x)
            unit = 0.5**0.5
            assert gradient.tolist() == pytest.approx(
                [2 / 4, (1 - unit) / 4, (1 + unit) / 4], abs=1e-5
            )
