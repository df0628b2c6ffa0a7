from itertools import pairwise

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.advantage import GroupMean, Tree
from tests.support.batches import few
from tests.support.trees import Forest, forest, forests, tree


def estimate(f: Forest) -> Tensor:
    return Tree()(f.rewards, f.mask, f.group, None, f.origin).advantages


@few
@given(forests)
def test_equals_the_loop(drawn: tuple[int, float]) -> None:
    f = forest(*drawn)
    torch.testing.assert_close(estimate(f.poisoned()), tree(f))


@few
@given(forests)
def test_the_credits_of_a_path_sum_to_reward_minus_mean(drawn: tuple[int, float]) -> None:
    f = forest(*drawn)
    credits, expected = estimate(f), GroupMean()(f.rewards, f.mask, f.group).advantages
    for i in f.scores():
        columns = f.mask[i].nonzero().flatten().tolist()
        segments = [f.sharing(i, t) for t in columns]
        starts = [t for k, t in enumerate(columns) if k == 0 or segments[k] != segments[k - 1]]
        # more than one row if a response has no sampled token of its own
        ends = expected[segments[-1], columns[-1]]
        torch.testing.assert_close(credits[i, starts].sum(), ends.mean())


@few
@given(st.integers(0, 10**6))
def test_without_branches_it_is_group_mean_bit_for_bit(seed: int) -> None:
    f = forest(seed, branching=0.0)
    expected = GroupMean()(f.rewards, f.mask, f.group).advantages
    assert torch.equal(estimate(f), expected)
    assert torch.equal(Tree()(f.rewards, f.mask, f.group).advantages, expected)


def test_values_are_exact_in_a_full_tree() -> None:
    """Two branches of equal probability at each of three turns, all of them sampled: V of a prefix
    is the expected reward after it."""
    rewards = torch.zeros(8, 3, dtype=torch.float64)
    rewards[:, 2] = torch.tensor([3.0, 1, 4, 1, 5, 9, 2, 6])
    leaves = torch.arange(8)
    origin = torch.stack([leaves // 4 * 4, leaves // 2 * 2, leaves], 1)
    advantages = Tree()(
        rewards, rewards > -1, torch.zeros(8, dtype=torch.long), None, origin
    ).advantages
    values = [rewards[:, 2].view(n, -1).mean(1).repeat_interleave(8 // n) for n in (1, 2, 4, 8)]
    torch.testing.assert_close(
        advantages, torch.stack([after - before for before, after in pairwise(values)], 1)
    )


@few
@given(forests)
def test_values_in_masked_slots_change_no_bit(drawn: tuple[int, float]) -> None:
    f = forest(*drawn)
    assert torch.equal(estimate(f), estimate(f.poisoned()))
    assert (estimate(f)[~f.mask] == 0).all()


@few
@given(forests, st.integers(0, 10**6))
def test_the_order_of_the_rows_changes_nothing(drawn: tuple[int, float], seed: int) -> None:
    f = forest(*drawn)
    order = torch.randperm(len(f.mask), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(estimate(f.select(order)), estimate(f)[order])


@few
@given(forests, st.integers(1, 4))
def test_padding_changes_no_bit(drawn: tuple[int, float], columns: int) -> None:
    f = forest(*drawn)
    rewards = torch.nn.functional.pad(f.rewards, (0, columns))
    mask = torch.nn.functional.pad(f.mask, (0, columns))
    origin = torch.nn.functional.pad(f.origin, (0, columns))
    padded = Tree()(rewards, mask, f.group, None, origin).advantages
    assert torch.equal(padded[:, : f.mask.shape[1]], estimate(f))
