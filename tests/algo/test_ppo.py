"""PPO: the critic learns, steps stop where the policy has moved too far, other losses join in."""

import pytest
import torch

from rlmods.advantage import GAE, Greedy
from rlmods.algo import PPO, Batch
from rlmods.algo.experience import assemble
from rlmods.critic import Separate, Shared
from rlmods.kl import Penalty
from rlmods.types import Response, Scores

from .worlds import SPLITS, attached, collected, fit, learner

CRITICS = {"separate": Separate(), "shared": Shared(coefficient=0.5)}


def ppo(critic="separate", **change):
    batch = change.pop("batch", Batch(prompts=8, samples=4, epochs=2, minibatches=2))
    return learner(PPO, advantage=change.pop("advantage", GAE(whiten=True)), critic=CRITICS[critic], batch=batch, **change)


@pytest.mark.parametrize("critic", CRITICS)
class TestCritic:
    def test_knows_more_and_more(self, critic):
        """A reward that the prompt alone decides can be known in full."""

        def by_prompt(responses):
            return [float(len(r.prompt.text)) - 3 for r in responses]

        rows = fit(ppo(critic, reward=by_prompt), 15)
        assert rows[0]["train/explained_variance"] == pytest.approx(0, abs=1e-6)
        assert rows[-1]["train/value_loss"] < 0.5 * rows[0]["train/value_loss"]

    def test_policy_learns(self, critic):
        rows = fit(ppo(critic), 15)
        assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.15

    def test_first_minibatch_is_on_policy(self, critic):
        rows = fit(ppo(critic, batch=Batch(prompts=8, samples=4)), 2)
        assert [row["train/ratio_max"] for row in rows] == [1.0, 1.0]
        assert rows[0]["train/value_clip_fraction"] == 0.0

    def test_its_weights_are_saved_and_trained_by_one_optimizer(self, critic):
        made = ppo(critic)
        fit(made, 1)
        assert any(name.startswith("critic.") for name in made.state_dict())
        assert len(made.optimizers().param_groups) == 2


def test_critic_has_a_learning_rate_of_its_own():
    made = learner(PPO, advantage=GAE(), critic=Separate(lr=0.5))
    fit(made, 1)
    assert [group["lr"] for group in made.optimizers().param_groups] == [1e-2, 0.5]


def test_values_are_those_of_collection():
    """F4: with values computed anew, the clip would never act."""
    rows = fit(ppo("separate", batch=Batch(prompts=8, samples=4, epochs=4, minibatches=2)), 3)
    assert rows[-1]["train/value_clip_fraction"] > 0


class TestTerminalReward:
    @pytest.mark.parametrize(("gamma", "want"), [(1.0, [2.0, 2.0, 2.0]), (0.0, [0.0, 0.0, 2.0])])
    def test_sits_on_the_last_trainable_token(self, gamma, want):
        response = Response(prompt=SPLITS.train[0], prompt_tokens=[7, 8], tokens=[9, 9, 1], behavior_logprobs=[0.0] * 3)
        longer = Response(prompt=SPLITS.train[0], prompt_tokens=[7], tokens=[9] * 6, behavior_logprobs=[0.0] * 6)
        rows = assemble([response, longer], Scores([2.0, 5.0]), torch.tensor([0, 0]), version=0, pad_id=1)
        credit = GAE(gamma, 1.0)(rows.rewards, rows.mask, rows.group, torch.zeros_like(rows.rewards))
        assert credit.returns[0].tolist() == [0.0, 0.0, *want, 0.0, 0.0]


class TestEarlyStop:
    def test_stops_once_the_policy_has_moved_too_far(self):
        batch = Batch(prompts=8, samples=4, epochs=4, minibatches=2)
        free, held = fit(ppo(batch=batch), 3), fit(ppo(batch=batch, target_kl=1e-4), 3)
        assert [row["optimizer_step"] for row in free] == [8, 16, 24]
        assert held[-1]["optimizer_step"] < 24
        assert held[0]["train/early_stop"] == 1.0
        assert held[0]["train/steps_done"] == held[0]["optimizer_step"] / 8
        assert free[0]["train/early_stop"] == 0.0

    def test_a_far_target_changes_nothing(self):
        batch = Batch(prompts=8, samples=4, epochs=2, minibatches=2)
        a, b = ppo(batch=batch), ppo(batch=batch, target_kl=1e3)
        fit(a, 2), fit(b, 2)
        assert all(torch.equal(x, y) for x, y in zip(a.policy.parameters(), b.policy.parameters(), strict=True))


class TestPTX:
    def test_imitates_beside_the_reward(self):
        flat = {"reward": lambda responses: [0.0] * len(responses), "ptx_prompts": list(SPLITS.train), "ptx_rows": 8}
        rows = fit(learner(ptx_coefficient=1.0, **flat), 12)
        assert rows[-1]["train/ptx_loss"] < 0.7 * rows[0]["train/ptx_loss"]

    def test_gradient_is_the_sum(self):
        """One step on both equals the sum of the gradients of each, whatever their sizes."""
        made = learner(ptx_coefficient=0.5, ptx_prompts=list(SPLITS.train), ptx_rows=5)
        batch = collected(made)
        [(rows, loss)] = made.imitation()
        assert len(rows) == 5

        def gradient(shares):
            from rlmods.types import Totals

            made.zero_grad()
            for part, share in shares:
                for micro, _ in made.microbatches(part):
                    share(micro, Totals(*part.counts)).backward()
            return torch.cat([p.grad.flatten() for p in made.policy.parameters()])

        both, one, other = (gradient(s) for s in ([(batch, made.loss), (rows, loss)], [(batch, made.loss)], [(rows, loss)]))
        assert other.norm() > 1e-3
        torch.testing.assert_close(both, one + other)

    def test_rows_depend_on_the_step_alone(self):
        made = learner(ptx_coefficient=0.5, ptx_prompts=list(SPLITS.train), ptx_rows=8)
        rows = [made.stream.rows(step, made.policy).tokens for step in (0, 1, 1)]
        assert torch.equal(rows[1], rows[2])
        assert rows[0].shape != rows[1].shape or not torch.equal(rows[0], rows[1])
        halves = [made.stream.rows(1, made.policy, rank, 2) for rank in (0, 1)]
        assert [len(half) for half in halves] == [4, 4]


class TestReference:
    def test_becomes_the_policy_every_so_often(self):
        made = learner(kl=Penalty("k3", 0.1, "loss"), reference_every=2, batch=Batch(prompts=4, samples=4))
        drift = [row["train/kl_ref"] for row in fit(made, 5)]
        assert drift[0] == drift[2] == drift[4] == pytest.approx(0, abs=1e-6)
        assert min(drift[1], drift[3]) > 1e-6

    def test_is_measured_also_where_it_costs_nothing(self):
        rows = fit(learner(kl=Penalty("k1", 0.0, "reward")), 3)
        assert rows[0]["train/kl_coefficient"] == 0
        assert abs(rows[-1]["train/kl_ref"]) > 1e-6


class TestGreedyBaseline:
    def test_is_the_reward_of_the_greedy_answer(self):
        made = attached(learner(advantage=Greedy()))
        rows, _ = made.collect(SPLITS.train[:3])
        from dataclasses import replace

        greedy = replace(made.rollout, temperature=0.0)
        greedy.sync(made.policy, iteration=0)
        answers = greedy.generate(SPLITS.train[:3], samples=1, iteration=0)
        want = torch.tensor(made.reward(answers).values).repeat_interleave(4)
        assert torch.equal(torch.where(rows.mask, rows.values, 0.0).amax(1), want)

    def test_learns(self):
        rows = fit(learner(advantage=Greedy(), batch=Batch(prompts=8, samples=8)), 15)
        assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.1
