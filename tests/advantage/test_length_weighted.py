import torch
from hypothesis import given

from rlmods.advantage import GroupMean, LengthWeighted
from tests.support.batches import Batch, batches, few


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    p = b.poisoned()
    advantages = LengthWeighted()(p.rewards, p.mask, p.group).advantages
    for i in range(len(b.rewards)):
        rows = [j for j in range(len(b.rewards)) if b.group[j] == b.group[i] and b.mask[j].any()]
        score = {
            j: sum(float(r) for r, m in zip(b.rewards[j], b.mask[j], strict=True) if m)
            for j in rows
        }
        length = {j: int(b.mask[j].sum()) for j in rows}
        want = (
            score[i] - sum(length[j] * score[j] for j in rows) / sum(length.values())
            if i in rows
            else 0.0
        )
        if i in rows and max(score.values()) == min(score.values()):
            want = 0.0
        expected = torch.where(b.mask[i], torch.tensor(want, dtype=b.rewards.dtype), 0.0)
        torch.testing.assert_close(advantages[i], expected)


def test_baseline_weights_long_responses_more() -> None:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    advantages = LengthWeighted()(rewards, mask, torch.zeros(2, dtype=torch.long)).advantages
    assert advantages.tolist() == [[0.25, 0.25, 0.25], [-0.75, 0.0, 0.0]]


@few
@given(batches)
def test_advantages_sum_to_0_over_the_tokens_of_a_group(b: Batch) -> None:
    """First-order condition of the baseline that minimises sum_i |y_i| (R_i - b)^2."""
    advantages = LengthWeighted()(b.rewards, b.mask, b.group).advantages
    for group in b.group.unique():
        assert abs(float(advantages[b.group == group].sum())) < 1e-6 * (
            1 + float(advantages.abs().sum())
        )


def test_equals_the_group_mean_for_equal_lengths() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    mask, group = torch.ones_like(rewards, dtype=torch.bool), torch.zeros(3, dtype=torch.long)
    torch.testing.assert_close(
        LengthWeighted()(rewards, mask, group).advantages,
        GroupMean()(rewards, mask, group).advantages,
    )
