import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.advantage import GroupNorm, TurnNorm
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import turn_advantage
from tests.support.turns import turns_of


@few
@given(batches, st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_equals_the_loop(b: Batch, seed: int, gamma: float, unbiased: bool) -> None:
    p = b.poisoned()
    turn, state = turns_of(b, seed)
    for compare, key in (("turn", turn), ("state", state)):
        estimator = TurnNorm(1e-4, unbiased, gamma, compare)
        advantages = estimator(p.rewards, p.mask, p.group, None, turn, state).advantages
        expected = turn_advantage(b.rewards, b.mask, b.group, turn, key, gamma, 1e-4, unbiased)
        torch.testing.assert_close(advantages, expected)


def test_one_turn_equals_group_norm() -> None:
    b = batch(9, 6, seed=3)
    turn = torch.zeros_like(b.mask, dtype=torch.long)
    expected = GroupNorm()(b.rewards, b.mask, b.group).advantages
    assert expected.abs().max() > 0.1
    found = TurnNorm()(b.rewards, b.mask, b.group, None, turn, turn).advantages
    torch.testing.assert_close(found, expected)


def test_a_turn_is_compared_with_the_same_turn_of_others() -> None:
    """Turn rewards 1, 5 and 0, 7: the first response is better in its first turn and worse in its
    second, whatever the scale. gamma 1: returns 6, 5 and 7, 7."""
    rewards = torch.tensor([[1.0, 0.0, 5.0], [0.0, 0.0, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True]] * 2)
    turn = torch.tensor([[0, 0, 1]] * 2)
    group = torch.tensor([4, 4])
    own = TurnNorm()(rewards, mask, group, None, turn, turn).advantages
    r = 0.5**0.5
    assert own[0].tolist() == pytest.approx([r, 0, -r], abs=1e-5)
    assert own[1].tolist() == pytest.approx([-r, 0, r], abs=1e-5)
    later = TurnNorm(gamma=1.0)(rewards, mask, group, None, turn, turn).advantages
    assert later[0].tolist() == pytest.approx([-r, 0, -r], abs=1e-5)


def test_a_turn_that_one_response_reaches_has_no_advantage() -> None:
    rewards = torch.tensor([[1.0, 9.0], [0.0, 0.0]])
    mask = torch.tensor([[True, True], [True, False]])
    turn = torch.tensor([[0, 1], [0, -1]])
    found = TurnNorm()(rewards, mask, torch.tensor([0, 0]), None, turn, turn).advantages
    assert found[0, 0] > 0.5
    assert found[0, 1] == 0


def test_turns_of_one_state_by_index_equal_turn_norm() -> None:
    b = batch(9, 6, seed=3)
    turn, _ = turns_of(b, seed=5)
    expected = TurnNorm(gamma=0.5)(b.rewards, b.mask, b.group, None, turn, turn).advantages
    assert expected.abs().max() > 0.1
    found = TurnNorm(compare="state", gamma=0.5)(
        b.rewards, b.mask, b.group, None, turn, turn
    ).advantages
    torch.testing.assert_close(found, expected)


def test_equal_states_are_compared_across_turns_and_responses() -> None:
    """Both responses meet state 8, the first in turn 1 with a return of 1 and the second in turn 2 with
    0. State 0 has returns 0.5 and 0, and states 6 and 7 are met once: only one turn each."""
    turn = torch.tensor([[0, 1, 2], [0, 1, 2]])
    state = torch.tensor([[0, 8, 6], [0, 7, 8]])
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    group = torch.tensor([1, 1])
    found = TurnNorm(compare="state", gamma=0.5)(rewards, mask, group, None, turn, state).advantages
    r = 0.5**0.5
    assert found[0].tolist() == pytest.approx([r, r, 0], abs=1e-5)
    assert found[1].tolist() == pytest.approx([-r, 0, -r], abs=1e-5)


def test_other_prompts_have_other_states() -> None:
    turn = torch.zeros(2, 1, dtype=torch.long)
    rewards = torch.tensor([[1.0], [0.0]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    found = TurnNorm(compare="state")(
        rewards, mask, torch.tensor([1, 2]), None, turn, turn
    ).advantages
    assert (found == 0).all()
