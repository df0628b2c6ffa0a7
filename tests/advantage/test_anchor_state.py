import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.advantage import AnchorState, TurnNorm
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import turn_advantage
from tests.support.turns import turns_of


@few
@given(batches, st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_equals_the_loop(b: Batch, seed: int, gamma: float, unbiased: bool) -> None:
    p = b.poisoned()
    turn, state = turns_of(b, seed)
    estimator = AnchorState(1e-4, unbiased, gamma)
    advantages = estimator(p.rewards, p.mask, p.group, None, turn, state).advantages
    expected = turn_advantage(b.rewards, b.mask, b.group, turn, state, gamma, 1e-4, unbiased)
    torch.testing.assert_close(advantages, expected)


def test_turns_of_one_state_by_index_equal_turn_norm() -> None:
    b = batch(9, 6, seed=3)
    turn, _ = turns_of(b, seed=5)
    expected = TurnNorm(gamma=0.5)(b.rewards, b.mask, b.group, None, turn, turn).advantages
    assert expected.abs().max() > 0.1
    found = AnchorState(gamma=0.5)(b.rewards, b.mask, b.group, None, turn, turn).advantages
    torch.testing.assert_close(found, expected)


def test_equal_states_are_compared_across_turns_and_responses() -> None:
    """Both responses meet state 8, the first in turn 1 with a return of 1 and the second in turn 2 with
    0. State 0 has returns 0.5 and 0, and states 6 and 7 are met once: only one turn each."""
    turn = torch.tensor([[0, 1, 2], [0, 1, 2]])
    state = torch.tensor([[0, 8, 6], [0, 7, 8]])
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    group = torch.tensor([1, 1])
    found = AnchorState(gamma=0.5)(rewards, mask, group, None, turn, state).advantages
    r = 0.5**0.5
    assert found[0].tolist() == pytest.approx([r, r, 0], abs=1e-5)
    assert found[1].tolist() == pytest.approx([-r, 0, -r], abs=1e-5)


def test_other_prompts_have_other_states() -> None:
    turn = torch.zeros(2, 1, dtype=torch.long)
    rewards = torch.tensor([[1.0], [0.0]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    found = AnchorState()(rewards, mask, torch.tensor([1, 2]), None, turn, turn).advantages
    assert (found == 0).all()


def test_it_needs_states() -> None:
    b = batch(4, 3, seed=1)
    turn, _ = turns_of(b, seed=0)
    with pytest.raises(ValueError, match="needs turn and state"):
        AnchorState()(b.rewards, b.mask, b.group, None, turn)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eps": 0.0}, "advantage.eps=0.0: must be above 0"),
        ({"gamma": -0.1}, "advantage.gamma=-0.1: must be between 0 and 1"),
        ({"gamma": 1.1}, "advantage.gamma=1.1: must be between 0 and 1"),
    ],
)
def test_settings_have_bounds(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AnchorState(**settings)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_settings_at_their_bounds(gamma: float) -> None:
    assert AnchorState(gamma=gamma).gamma == gamma
