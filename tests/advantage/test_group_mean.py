import torch
from hypothesis import given

from rlmods.advantage import GroupMean, GroupNorm
from tests.support.batches import Batch, batches, few
from tests.support.reference import group_advantage


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    p = b.poisoned()
    advantages = GroupMean()(p.rewards, p.mask, p.group).advantages
    torch.testing.assert_close(
        advantages, group_advantage("group_mean", b.rewards, b.mask, b.group)
    )


def test_keeps_the_scale_that_group_norm_divides_out() -> None:
    rewards, group = (
        torch.tensor([[1.0], [0.0], [10.0], [0.0]], dtype=torch.float64),
        torch.tensor([0, 0, 1, 1]),
    )
    mask = torch.ones_like(rewards, dtype=torch.bool)
    assert GroupMean()(rewards, mask, group).advantages[:, 0].tolist() == [0.5, -0.5, 5, -5]
    assert GroupNorm()(rewards, mask, group).advantages.abs().std() < 1e-5
