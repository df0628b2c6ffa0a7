import torch
from hypothesis import given

from rlmods.advantage import RLOO
from tests.support.batches import Batch, batches, few
from tests.support.reference import group_advantage


@few
@given(batches)
def test_equals_the_leave_one_out_loop(b: Batch) -> None:
    p = b.poisoned()
    advantages = RLOO()(p.rewards, p.mask, p.group).advantages
    torch.testing.assert_close(advantages, group_advantage("rloo", b.rewards, b.mask, b.group))
