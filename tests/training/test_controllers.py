"""The entropy bonus and the scale of rewards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.advantage import GroupMean
from rlmods.algo import Batch
from rlmods.training.reward_scale import EntropyBonus, RewardScale
from tests.support.batches import few
from tests.support.tiny_setup import collected, fit, learner


def alone(x: torch.Tensor) -> torch.Tensor:
    return x


class TestEntropyBonus:
    def test_moves_towards_the_target_and_never_below_zero(self):
        bonus = EntropyBonus(0.1, target=1.0, rate=0.1)
        bonus.on_iteration_end({"train/entropy": 0.5})
        assert bonus.coefficient == pytest.approx(0.15)
        bonus.on_iteration_end({"train/entropy": 9.0})
        assert bonus.coefficient == 0.0
        bonus.on_iteration_end({})
        assert bonus.coefficient == 0.0

    def test_without_a_target_it_stays(self):
        bonus = EntropyBonus(0.1)
        bonus.on_iteration_end({"train/entropy": 0.0})
        assert bonus.coefficient == 0.1

    def test_keeps_the_entropy_up(self):
        found = {}
        for target in (None, 3.0):
            made = learner(target_entropy=target, batch=Batch(prompts=8, samples=8, minibatches=2))
            made.entropy_bonus.rate = 0.2
            found[target] = fit(made, 25)[-1]["train/entropy"]
        assert found[3.0] > found[None] + 0.1


class TestRewardScale:
    @few
    @given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=8), min_size=1, max_size=5))
    def test_moments_are_those_of_everything_seen(self, batches):
        scale = RewardScale(normalize=True)
        for batch in batches:
            scale.observe(batch, alone)
        everything = torch.tensor([x for batch in batches for x in batch], dtype=torch.float64)
        assert scale.mean == pytest.approx(float(everything.mean()), abs=1e-9)
        assert scale.squares == pytest.approx(float((everything - everything.mean()).square().sum()), rel=1e-9, abs=1e-7)

    def test_normalises_then_clips(self):
        scale = RewardScale(normalize=True, clip=1.0)
        scale.observe([0.0, None, 2.0, 4.0], alone)
        std = (8 / 3) ** 0.5
        assert scale.scaled(3.0) == pytest.approx(1 / std)
        assert scale.scaled(100.0) == 1.0
        assert scale.scaled(-100.0) == -1.0
        assert scale.scaled(None) is None

    def test_equal_rewards_give_zero(self):
        scale = RewardScale(normalize=True)
        scale.observe([0.95] * 8, alone)
        assert scale.scaled(0.95) == pytest.approx(0.0, abs=1e-9)

    def test_off_changes_nothing(self):
        scale = RewardScale()
        scale.observe([1.0, 2.0], alone)
        assert (scale.scaled(7.5), scale.count) == (7.5, 0)

    def test_reaches_the_rewards_that_are_trained_on(self):
        made = learner(clip_reward=0.25)
        rewards = collected(made).rewards.sum(1)
        assert rewards.max() == 0.25

    def test_ten_times_the_reward_trains_the_same(self):
        def paid(much):
            return lambda responses: [much * float(r.tokens[0] % 2 == 0) for r in responses]

        rows = [fit(learner(advantage=GroupMean(), normalize_reward=True, reward=paid(much)), 3) for much in (1.0, 10.0)]
        assert rows[0][-1]["train/grad_norm"] == pytest.approx(rows[1][-1]["train/grad_norm"], rel=1e-3)
