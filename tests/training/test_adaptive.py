"""The weight of the entropy bonus follows its target; rewards are scaled by their moments."""

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.advantage import GroupMean
from rlmods.algo import Batch
from rlmods.distributed.collectives import Ranks
from rlmods.training.adaptive import EntropyBonus, RewardScale
from tests.support.batches import few
from tests.support.tiny_setup import collected, fit, learner


@pytest.mark.parametrize(
    ("target", "entropy", "expected"),
    [(2.0, 1.5, 0.55), (2.0, 3.0, 0.4), (2.0, 9.0, 0.0), (2.0, None, 0.5), (None, 1.5, 0.5)],
)
def test_moves_towards_the_target_and_never_below_zero(
    target: float | None, entropy: float | None, expected: float
) -> None:
    bonus = EntropyBonus(0.5, target, rate=0.1)
    bonus.on_iteration_end({} if entropy is None else {"train/entropy": entropy})
    assert bonus.coefficient == pytest.approx(expected)


def test_is_part_of_the_checkpoint() -> None:
    made, other = (learner(target_entropy=2.0, entropy_coefficient=c) for c in (0.5, 0.1))
    other.checkpoint.load_state(made.checkpoint.state())
    assert other.entropy_bonus.coefficient == 0.5


@pytest.mark.slow
def test_keeps_the_entropy_up() -> None:
    entropy = {}
    for target in (None, 3.0):
        batch = Batch(prompts=8, samples=8, minibatches=2)
        made = learner(target_entropy=target, entropy_rate=0.2, batch=batch)
        entropy[target] = fit(made, 25)[-1]["train/entropy"]
    assert entropy[3.0] > entropy[None] + 0.1


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
