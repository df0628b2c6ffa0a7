from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.ops import (
    MAX_PADDED,
    center_by_group,
    constant_group,
    differs_by_token,
    group_index,
    group_reduce,
    importance_ratio,
    largest,
    masked_mean,
    masked_sum,
    pack,
    rewards_to_go,
    scatter,
    whiten,
)
from tests.support import ranks
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import dense, to_go


@few
@given(batches)
def test_masked_sum_and_mean_are_loops_over_true_slots(b: Batch) -> None:
    rows = [
        [float(x) for x, m in zip(xs, ms, strict=True) if m]
        for xs, ms in zip(b.values, b.mask, strict=True)
    ]
    p = b.poisoned()
    torch.testing.assert_close(
        masked_sum(p.values, b.mask), torch.tensor([sum(r) for r in rows], dtype=torch.float64)
    )
    means = [sum(r) / len(r) if r else 0.0 for r in rows]
    torch.testing.assert_close(
        masked_mean(p.values, b.mask), torch.tensor(means, dtype=torch.float64)
    )


@few
@given(st.lists(st.integers(-5, 5), max_size=9))
def test_group_index_is_the_rank_of_the_id(ids: list[int]) -> None:
    group = torch.tensor(ids, dtype=torch.long)
    expected = [sorted(set(ids)).index(x) for x in ids]
    assert group_index(group).tolist() == expected


def test_group_reduce_goes_by_id_and_not_by_position() -> None:
    x, group = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([9, -3, 9, 9])
    assert group_reduce(x, group, "sum").tolist() == [13, 2, 13, 13]
    assert group_reduce(x, group, "amax").tolist() == [8, 2, 8, 8]
    assert group_reduce(-x, group, "amin").tolist() == [-8, -2, -8, -8]


def test_rows_without_a_true_slot_are_left_out_of_the_mean_of_their_group() -> None:
    rewards = torch.tensor([[1.0, 5.0], [2.0, 2.0], [7.0, 7.0], [3.0, 0.0]])
    mask = torch.tensor([[True, False], [True, True], [False, False], [True, True]])
    centred, count = center_by_group(rewards, mask, torch.tensor([0, 0, 0, 1]))
    assert centred.tolist() == [-1.5, 1.5, 0, 0]
    assert count.tolist() == [2, 2, 2, 1]


def test_importance_is_finite_where_float32_would_overflow() -> None:
    d = torch.tensor([[-200.0, 0.0, 200.0]], requires_grad=True)
    r = importance_ratio(d, torch.ones(1, 3, dtype=torch.bool))
    assert r.isfinite().all()
    assert r[0, 1] == 1
    assert (importance_ratio(d, torch.zeros(1, 3, dtype=torch.bool)) == 1).all()
    assert torch.autograd.grad(r.sum(), d)[0].isfinite().all()


@few
@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 120))
def test_pack_covers_every_row_once_within_the_budget(sizes: list[int], budget: int) -> None:
    lengths = torch.tensor(sizes, dtype=torch.long)
    chunks = pack(lengths, budget)
    assert sorted(i for chunk in chunks for i in chunk.tolist()) == list(range(len(sizes)))
    padded = [len(chunk) * int(lengths[chunk].max()) for chunk in chunks]
    assert all(
        size <= budget or len(chunk) == 1 for size, chunk in zip(padded, chunks, strict=True)
    )
    flat = [sizes[i] for chunk in chunks for i in chunk.tolist()]
    assert flat == sorted(flat, reverse=True)
    for chunk in chunks[:-1]:
        assert (len(chunk) + 1) * int(lengths[chunk].max()) > budget, "the next row had room here"


@few
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=30), st.integers(1, 120))
def test_pack_by_group(rows: list[tuple[int, int]], budget: int) -> None:
    lengths, group = (torch.tensor([row[i] for row in rows], dtype=torch.long) for i in (0, 1))
    chunks = pack(lengths, budget, group)
    flat = [i for chunk in chunks for i in chunk.tolist()]
    assert sorted(flat) == list(range(len(rows)))
    assert all(
        len(chunk) == 1 or len(chunk) * int(lengths[chunk].max()) <= budget for chunk in chunks
    )
    groups = [int(group[i]) for i in flat]
    assert len(dict.fromkeys(groups)) == sum(
        a != b for a, b in zip(groups, [None, *groups], strict=False)
    ), "a group is in one piece"
    longest = [
        max(int(lengths[i]) for i in flat if int(group[i]) == g) for g in dict.fromkeys(groups)
    ]
    assert longest == sorted(longest, reverse=True)


@few
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(0, 4)), min_size=1),
    st.integers(1, 120),
)
def test_pack_by_computed_tokens(rows: list[tuple[int, int, int]], budget: int) -> None:
    """A prompt of group g has 3 g tokens, and each response its own."""
    group = torch.tensor([row[2] for row in rows])
    lengths = 3 * group + torch.tensor([row[1] for row in rows])

    def computed(order: Tensor) -> tuple[Tensor, Tensor]:
        alone = lengths[order]
        is_shared = group[order] == group[order].roll(1)
        return alone, alone - torch.where(is_shared, 3 * group[order], 0)

    def num_computed(chunk: list[int]) -> int:
        prompts = {int(group[i]) for i in chunk}
        responses = sum(int(lengths[i]) - 3 * int(group[i]) for i in chunk)
        return responses + sum(3 * g for g in prompts)

    def fits(chunk: list[int]) -> bool:
        padded = len(chunk) * max(int(lengths[i]) for i in chunk)
        return num_computed(chunk) <= budget and padded <= MAX_PADDED * budget

    chunks = [chunk.tolist() for chunk in pack(lengths, budget, group, computed)]
    assert sorted(i for chunk in chunks for i in chunk) == list(range(len(rows)))
    assert all(fits(chunk) or len(chunk) == 1 for chunk in chunks)
    for chunk, following in pairwise(chunks):
        assert not fits([*chunk, following[0]]), "the next row had room here"


def test_pack_by_hand() -> None:
    assert [c.tolist() for c in pack(torch.tensor([3, 10, 3, 4]), 8)] == [[1], [3, 0], [2]]


@few
@given(batches, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_rewards_to_go_are_a_loop_over_true_slots(b: Batch, gamma: float) -> None:
    got = rewards_to_go(b.poisoned().rewards, b.mask, gamma)
    torch.testing.assert_close(got, dense(to_go(b.rewards, b.mask, gamma), b.mask.shape))
    plain = rewards_to_go(b.rewards, b.mask)
    torch.testing.assert_close(plain, dense(to_go(b.rewards, b.mask, 1.0), b.mask.shape))


def test_whiten_gives_mean_0_and_variance_1_over_true_slots_only() -> None:
    b = batch(6, 9, seed=3).poisoned()
    x = whiten(b.values, b.mask)
    assert x[b.mask].mean().item() == pytest.approx(0, abs=1e-12)
    assert x[b.mask].var(unbiased=False).item() == pytest.approx(1, abs=1e-6)
    assert (x[~b.mask] == 0).all()


def test_whiten_of_one_slot_or_none_is_0() -> None:
    x = torch.tensor([[5.0, torch.nan]])
    assert whiten(x, torch.tensor([[True, False]])).tolist() == [[0, 0]]
    assert whiten(x, torch.tensor([[False, False]])).tolist() == [[0, 0]]


def _whiten_on_rank(rank: int) -> None:
    b = batch(7, 5, seed=11)
    part = [slice(0, 2), slice(2, 7)][rank]
    got = whiten(b.values[part], b.mask[part])
    torch.testing.assert_close(got, whiten(b.values, b.mask)[part])


@pytest.mark.slow
def test_whiten_on_two_ranks_equals_one() -> None:
    ranks.spawn(_whiten_on_rank)


def test_rewards_to_go_may_discount_each_token_differently() -> None:
    b = batch(6, 7, seed=3).poisoned()
    gamma = torch.where(torch.arange(7) % 3 == 0, 0.5, 1.0).double().expand_as(b.mask)
    found = rewards_to_go(b.rewards, b.mask, gamma)
    for i, mask in enumerate(b.mask):
        later = 0.0
        for t in reversed(mask.nonzero().flatten().tolist()):
            later = float(b.rewards[i, t]) + float(gamma[i, t]) * later
            assert found[i, t].item() == pytest.approx(later)
    assert (found[~b.mask] == 0).all()


def test_differs_by_token_ignores_masked_slots_and_rounding() -> None:
    x = torch.tensor(
        [
            [1.0, 1.0, 5.0],
            [1.0, 2.0, 5.0],
            [1.0, 1.0 + 1e-7, 5.0],
            [0.0, 0.0, 5.0],
            [1.0, 2.0, 3.0],
            [-1.0, -2.0, 1.0],
        ]
    )
    mask = torch.tensor([[True, True, False]] * 4 + [[False] * 3] + [[True, True, False]])
    assert differs_by_token(x, mask).tolist() == [False, True, False, False, False, True]
    assert differs_by_token(x.masked_fill(~mask, torch.nan), mask).tolist() == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_scatter_puts_values_back_except_in_the_first_column() -> None:
    mask = torch.tensor([[True, True, False], [False, False, True]])
    found = scatter(torch.tensor([0.5, 0.25]), mask)
    assert found.tolist() == [[0.0, 0.5, 0.0], [0.0, 0.0, 0.25]]


def test_unscored_members_do_not_count_in_a_constant_group() -> None:
    scores = torch.tensor([1.0, 1.0, 0.0, 9.0, 1.0, 2.0])
    scored = torch.tensor([True, True, False, False, True, True])
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    assert constant_group(scores, scored, group).tolist() == [True] * 4 + [False] * 2


def test_largest_is_exact_and_takes_what_is_equal() -> None:
    x = torch.tensor([[-2.0, -1.0, torch.nan], [0.5, 0.5 - 1e-7, 3.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])

    def found(count: int, tolerance: float = 0.0) -> list[list[int]]:
        return largest(x, mask, torch.tensor(count), tolerance).nonzero().tolist()

    assert found(1) == [[1, 2]]
    assert found(2) == [[1, 0], [1, 2]]
    assert found(2, 1e-5) == [[1, 0], [1, 1], [1, 2]]
    assert found(4) == [[0, 1], [1, 0], [1, 1], [1, 2]]
    assert found(5) == found(9) == mask.nonzero().tolist()


def test_largest_compares_in_float32_at_any_size() -> None:
    """1 / 3 is larger in float32 than in float64."""
    for x in ([1 / 3, 1 / 3 - 1e-12, 0.1], [1e30, 1e30, 5.0], [-5.0, -5.0, -1e30]):
        values = torch.tensor([x], dtype=torch.float64)
        found = largest(values, torch.ones(1, 3, dtype=torch.bool), torch.tensor(1))
        assert found.tolist() == [[True, True, False]]
