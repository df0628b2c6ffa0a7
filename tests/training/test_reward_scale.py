"""Normalisation and clipping of rewards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.advantage import GroupMean
from rlmods.distributed.collectives import Ranks
from rlmods.training.reward_scale import RewardScale
from tests.support.batches import few
from tests.support.tiny_setup import collected, fit, learner


class SingleRank(Ranks):
    """A single rank without a module."""

    def __init__(self) -> None:
        pass

    def reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        return x


class TestRewardScale:
    @few
    @given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=8), min_size=1, max_size=5))
    def test_moments_are_those_of_everything_seen(self, batches):
        scale = RewardScale(normalize=True)
        for batch in batches:
            scale.update(batch, SingleRank())
        everything = torch.tensor([x for batch in batches for x in batch], dtype=torch.float64)
        assert scale.mean == pytest.approx(float(everything.mean()), abs=1e-9)
        assert scale.squares == pytest.approx(
            float((everything - everything.mean()).square().sum()), rel=1e-9, abs=1e-7
        )

    def test_normalises_then_clips(self):
        scale = RewardScale(normalize=True, clip=1.0)
        scale.update([0.0, None, 2.0, 4.0], SingleRank())
        std = (8 / 3) ** 0.5
        assert scale(3.0) == pytest.approx(1 / std)
        assert scale(100.0) == 1.0
        assert scale(-100.0) == -1.0
        assert scale(None) is None

    def test_equal_rewards_give_zero(self):
        scale = RewardScale(normalize=True)
        scale.update([0.95] * 8, SingleRank())
        assert scale(0.95) == pytest.approx(0.0, abs=1e-9)

    def test_off_changes_nothing(self):
        scale = RewardScale()
        scale.update([1.0, 2.0], SingleRank())
        assert (scale(7.5), scale.count) == (7.5, 0)

    def test_reaches_the_rewards_that_are_trained_on(self):
        made = learner(clip_reward=0.25)
        rewards = collected(made).rewards.sum(1)
        assert rewards.max() == 0.25

    def test_ten_times_the_reward_trains_the_same(self):
        def paid(much):
            return lambda responses: [much * float(r.tokens[0] % 2 == 0) for r in responses]

        rows = [
            fit(learner(advantage=GroupMean(), normalize_reward=True, reward=paid(much)), 3)
            for much in (1.0, 10.0)
        ]
        assert rows[0][-1]["train/grad_norm"] == pytest.approx(
            rows[1][-1]["train/grad_norm"], rel=1e-3
        )
