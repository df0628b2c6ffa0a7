import copy

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.advantage import EMA, ema
from rlmods.protocols import Controller
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batch, batches, few


def scores(b: Batch) -> list[float]:
    """Total rewards of the scored rows, computed in a loop."""
    rows = (
        [float(r) for r, m in zip(rs, ms, strict=True) if m]
        for rs, ms in zip(b.rewards, b.mask, strict=True)
    )
    return [sum(row) for row in rows if row]


def outcome(*rewards: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, mask and groups of one-token responses."""
    x = torch.tensor(rewards, dtype=torch.float64)[:, None]
    return x, torch.ones_like(x, dtype=torch.bool), torch.arange(len(rewards))


@few
@given(st.lists(batches, min_size=1, max_size=4), st.floats(0, 0.99))
def test_equals_the_loop(calls: list[Batch], decay: float) -> None:
    part, baseline = EMA(decay), None
    for b in calls:
        p = b.poisoned()
        advantages = part(p.rewards, p.mask, p.group).advantages
        row_scores = scores(b)
        if not row_scores:
            assert (advantages == 0).all()
            continue
        mean = sum(row_scores) / len(row_scores)
        baseline = mean if baseline is None else baseline
        expected = torch.where(
            b.mask, torch.where(b.mask, b.rewards, 0).sum(1, keepdim=True) - baseline, 0
        )
        torch.testing.assert_close(advantages, expected)
        baseline = decay * baseline + (1 - decay) * mean


def test_baseline_is_the_mean_of_earlier_calls() -> None:
    part = EMA(0.75)
    assert part(*outcome(1.0, 3.0)).advantages[:, 0].tolist() == [-1, 1]
    assert part(*outcome(6.0)).advantages[:, 0].tolist() == [4]
    assert part(*outcome(3.0)).advantages[:, 0].tolist() == [0]
    assert part(*outcome(7.0)).advantages[:, 0].tolist() == [4]


def test_a_baseline_of_0_counts_as_a_baseline() -> None:
    part = EMA()
    part(*outcome(-1.0, 1.0))
    assert part(*outcome(2.0)).advantages[:, 0].tolist() == [2]


def test_baseline_does_not_contain_the_current_rewards() -> None:
    """After the first call, raising one reward raises its advantage by the same amount and leaves
    the others unchanged."""
    one, other = EMA(0.0), EMA(0.0)
    for part in (one, other):
        part(*outcome(0.5, -1.0))
    moved = other(*outcome(11.0, 2.0)).advantages - one(*outcome(1.0, 2.0)).advantages
    assert moved[:, 0].tolist() == [10, 0]


def test_unscored_responses_are_left_out_of_the_mean() -> None:
    rewards, mask, group = outcome(1.0, torch.nan, 3.0)
    mask[1] = False
    part = EMA()
    assert part(rewards, mask, group).advantages[:, 0].tolist() == [-1, 0, 1]
    assert part.state_dict() == {"mean": 2.0}


def test_a_call_without_scored_rows_keeps_the_baseline() -> None:
    part = EMA()
    rewards, mask, group = outcome(5.0)
    assert (part(rewards, torch.zeros_like(mask), group).advantages == 0).all()
    assert part(rewards, mask, group).advantages.item() == 0


def test_two_ranks_share_one_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    single, parts, calls = EMA(), (EMA(), EMA()), [batch(7, 5, seed=s) for s in (1, 2, 3)]
    for b in calls:
        expected = single(b.rewards, b.mask, b.group).advantages
        with monkeypatch.context() as patch:
            halves = [b.select(torch.arange(2)), b.select(torch.arange(2, 7))]
            work = [
                lambda p=p, h=h: p(h.rewards, h.mask, h.group).advantages
                for p, h in zip(parts, halves, strict=True)
            ]
            torch.testing.assert_close(torch.cat(on_ranks(patch, ema, *work)), expected)
    assert parts[0] is not parts[1]
    assert parts[0].state_dict() == parts[1].state_dict() == pytest.approx(single.state_dict())


def test_state_is_restored_exactly() -> None:
    part = EMA()
    part(*outcome(0.1, 0.7))
    state = copy.deepcopy(part.state_dict())
    other = EMA()
    other.load_state_dict(state)
    for _ in range(2):
        assert torch.equal(
            part(*outcome(0.3, 0.9)).advantages, other(*outcome(0.3, 0.9)).advantages
        )
    fresh = EMA()
    fresh.load_state_dict(EMA().state_dict())
    assert fresh(*outcome(4.0)).advantages.item() == 0
    assert isinstance(part, Controller)
    part.on_iteration_end({})
    assert part.state_dict() == other.state_dict()
