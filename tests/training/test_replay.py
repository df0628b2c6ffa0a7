"""Rows of earlier iterations."""

import torch

from rlmods.algo import Batch
from rlmods.training.extensions.replay import Replay
from tests.support.tiny_setup import collected, fit, learner


def versioned(version: int):
    rows = collected(learner())
    rows.policy_version.fill_(version)
    return rows


def keep(replay, rows):
    replay.after_update(rows, len(rows))


def test_draws_a_fraction_without_repetition_and_forgets_the_stale():
    replay = Replay(fraction=0.5, staleness=2)
    assert replay.draw(16, 0, torch.Generator()) is None
    for version in (0, 1):
        keep(replay, versioned(version))
    drawn = replay.draw(16, 2, torch.Generator())
    assert len(drawn) == 8
    assert len(replay.rows) == 32
    assert set(replay.draw(1000, 3, torch.Generator()).policy_version.tolist()) == {1}
    assert replay.draw(16, 4, torch.Generator()) is None


def test_state_goes_round():
    replay, other = Replay(fraction=0.5), Replay(fraction=0.5)
    keep(replay, versioned(3))
    other.load_rank_states([Replay(0.5).rank_state(), replay.rank_state()], rank=1, world_size=2)
    assert torch.equal(other.rows.tokens, replay.rows.trim().tokens)
    assert Replay(0.5).rank_state() == {}


def test_replayed_rows_are_weighed_against_the_policy_that_sampled_them():
    made = learner(replay_fraction=0.5, batch=Batch(prompts=4, samples=4))
    seen = []
    original = made.loss
    made.loss = lambda micro, totals: (seen.append(micro), original(micro, totals))[1]
    rows = fit(made, 3)
    assert rows[0]["train/replayed_fraction"] == 0
    assert rows[1]["train/replayed_fraction"] == 1 / 3
    assert rows[1]["train/ratio_max"] > 1.0
    old = [micro.select(micro.policy_version < 2) for micro in seen[-1:]]
    assert all(len(o) and not o.on_policy.any() for o in old)
