import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.advantage import RLOO, GroupMean, GroupNorm
from rlmods.protocols import Advantage
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import group_advantage


def outcome(
    scores: Tensor | list[float], group: list[int] | None = None, part: Advantage | None = None
) -> Tensor:
    """Advantages [N] of one-token responses with these scores."""
    rewards = torch.as_tensor(scores)[:, None]
    ids = torch.tensor(group or [0] * len(rewards))
    return (part or GroupNorm())(
        rewards, torch.ones_like(rewards, dtype=torch.bool), ids
    ).advantages[:, 0]


@few
@given(batches, st.floats(1e-8, 1e-2), st.booleans())
def test_estimators_of_groups_equal_the_loop(b: Batch, eps: float, unbiased: bool) -> None:
    p = b.poisoned()
    parts = {"group_norm": GroupNorm(eps, unbiased), "group_mean": GroupMean(), "rloo": RLOO()}
    for kind, part in parts.items():
        credit = part(p.rewards, p.mask, p.group)
        expected = group_advantage(kind, b.rewards, b.mask, b.group, eps, unbiased)
        torch.testing.assert_close(credit.advantages, expected)
        assert credit.returns is None


def test_unbiased_by_default() -> None:
    scores = torch.tensor([0.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(outcome(scores), (scores - scores.mean()) / (scores.std() + 1e-6))
    biased = (scores - scores.mean()) / (scores.std(unbiased=False) + 1e-6)
    torch.testing.assert_close(outcome(scores, part=GroupNorm(unbiased=False)), biased)


@pytest.mark.parametrize("eps", [1e-6, 1e-8])
@pytest.mark.parametrize(
    "scores", [[0.95] * 8, [1 / 3] * 7, [0.1, 0.1, 0.1, 0.1 + 1e-7], [0.0] * 4, [-2.0] * 3, [3.0]]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_0(eps: float, scores: list[float], dtype: torch.dtype) -> None:
    assert (outcome(torch.tensor(scores, dtype=dtype), part=GroupNorm(eps)) == 0).all()


def test_a_small_difference_is_not_treated_as_noise() -> None:
    assert outcome(torch.tensor([0.1, 0.1, 0.1, 0.101])).abs().min() > 0.1


@few
@given(
    st.lists(
        st.sampled_from([0.95, 1 / 3, 0.1, 0.1 + 1e-7, 0.0, 1.0, -1.0, 1e6]),
        min_size=1,
        max_size=16,
    )
)
def test_advantages_are_bounded_by_the_square_root_of_the_group_size(scores: list[float]) -> None:
    advantages = outcome(torch.tensor(scores))
    assert advantages.isfinite().all()
    assert advantages.abs().max() <= len(scores) ** 0.5


def test_groups_are_defined_by_id_and_not_by_position() -> None:
    """Shuffling the rows shuffles the advantages, and a missing row changes no other group."""
    scores = torch.tensor([1.0, 0.0, 0.5, 3.0, 2.0, 2.5], dtype=torch.float64)
    group = [4, 4, 4, 9, 9, 9]
    advantages_by_id = outcome(scores, group)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(
        outcome(scores[order], [group[i] for i in order]), advantages_by_id[order]
    )
    without_first = outcome(scores[1:], group[1:])
    torch.testing.assert_close(without_first[2:], advantages_by_id[3:])
    assert not torch.allclose(without_first[:2], advantages_by_id[1:3])
    assert advantages_by_id[:3].sum().item() == pytest.approx(0)
    assert advantages_by_id[3:].sum().item() == pytest.approx(0)


def test_unscored_responses_are_left_out_of_their_group() -> None:
    rewards = torch.tensor([[1.0], [0.0], [torch.nan], [0.5]], dtype=torch.float64)
    mask, group = torch.tensor([[True], [True], [False], [True]]), torch.zeros(4, dtype=torch.long)
    advantages = GroupNorm()(rewards, mask, group).advantages
    scored = torch.tensor([0, 1, 3])
    torch.testing.assert_close(
        advantages[scored], GroupNorm()(rewards[scored], mask[scored], group[scored]).advantages
    )
    assert advantages[2] == 0
    assert (GroupNorm()(rewards, torch.zeros_like(mask), group).advantages == 0).all()


def test_a_nan_reward_gives_nan_advantages() -> None:
    assert outcome(torch.tensor([1.0, torch.nan, 0.0])).isnan().any()


def test_scale_by_the_batch() -> None:
    """Two prompts with rewards 0, 2 and 5, 5, an unscored response left out: the standard deviation
    of 0, 2, 5 and 5 divides both groups."""
    scores = torch.tensor([0.0, 2.0, 5.0, 5.0, 9.0], dtype=torch.float64)
    mask = torch.tensor([[True], [True], [True], [True], [False]])
    group = torch.tensor([0, 0, 1, 1, 1])
    part = GroupNorm(eps=0.5, scale="batch")
    found = part(scores[:, None], mask, group).advantages[:, 0]
    divisor = scores[:4].std() + 0.5
    expected = torch.tensor([-1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64) / divisor
    torch.testing.assert_close(found, expected)
    assert part.needs.normalizes_rewards


def test_group_mean_keeps_the_scale_that_group_norm_divides_out() -> None:
    scores, group = torch.tensor([1.0, 0.0, 10.0, 0.0], dtype=torch.float64), [0, 0, 1, 1]
    assert outcome(scores, group, GroupMean()).tolist() == [0.5, -0.5, 5, -5]
    assert outcome(scores, group).abs().std() < 1e-5


def test_no_scale_is_group_mean() -> None:
    b = batch(9, 6, seed=3)
    part = GroupNorm(scale="none")
    expected = GroupMean()(b.rewards, b.mask, b.group).advantages
    assert torch.equal(part(b.rewards, b.mask, b.group).advantages, expected)
    assert not part.needs.normalizes_rewards
