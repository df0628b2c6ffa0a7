import torch
from hypothesis import given

from rlmods.advantage import Greedy
from tests.support.batches import Batch, batches, few
from tests.support.reference import dense, to_go


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    p = b.poisoned()
    credit = Greedy()(p.rewards, p.mask, p.group, p.values)
    field = {at: x - b.values[at] for at, x in to_go(b.rewards, b.mask).items()}
    torch.testing.assert_close(credit.advantages, dense(field, b.mask.shape))
    assert credit.returns is None


def test_greedy_reward_is_subtracted_from_an_outcome_reward() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, torch.nan, torch.nan]])
    values = torch.tensor([[0.25] * 3, [0.25] * 3])
    advantages = Greedy()(rewards, mask, torch.tensor([0, 0]), values).advantages
    assert advantages.tolist() == [[0.75, 0.75, 0.75], [-0.25, 0, 0]]


def test_reward_equal_to_the_greedy_one_gives_0() -> None:
    rewards, mask = torch.tensor([[0.0, 0.7]]), torch.ones(1, 2, dtype=torch.bool)
    assert Greedy()(
        rewards, mask, torch.tensor([0]), torch.full((1, 2), 0.7)
    ).advantages.tolist() == [[0, 0]]


def test_needs_a_greedy_response() -> None:
    assert Greedy.needs.greedy
    assert not Greedy.needs.values
