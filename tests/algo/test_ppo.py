"""PPO: the critic learns, steps stop where the policy has moved too far, other losses join in."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from rlmods.advantage import GAE, Greedy
from rlmods.algo import PPO, Batch
from rlmods.critic import Separate, Shared
from rlmods.data import PromptLoader, Splits
from rlmods.kl import Full, Penalty
from rlmods.ratio import KLPenalty
from rlmods.rollout import Local
from rlmods.sampling import Dynamic
from rlmods.training.collate import sft_batch
from rlmods.training.extensions import PTX, Replay, UpdateKL
from rlmods.types import Scores, Totals
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    collected,
    even,
    extension,
    fit,
    gradients,
    learner,
)

CRITICS = {"separate": Separate(), "shared": Shared(coefficient=0.5)}


def ppo(critic="separate", **change):
    batch = change.pop("batch", Batch(prompts=8, samples=4, epochs=2, minibatches=2))
    return learner(
        PPO,
        advantage=change.pop("advantage", GAE(whiten=True)),
        critic=CRITICS[critic],
        batch=batch,
        **change,
    )


@pytest.mark.parametrize("critic", CRITICS)
class TestCritic:
    @pytest.mark.slow
    def test_knows_more_and_more(self, critic):
        """A reward that the prompt alone decides can be known in full."""

        def by_prompt(responses):
            return [float(len(r.prompt.text)) - 3 for r in responses]

        rows = fit(ppo(critic, reward=by_prompt), 15)
        assert rows[0]["train/explained_variance"] == pytest.approx(0, abs=1e-6)
        assert rows[-1]["train/value_loss"] < 0.5 * rows[0]["train/value_loss"]

    def test_first_minibatch_is_on_policy(self, critic):
        rows = fit(ppo(critic, batch=Batch(prompts=8, samples=4)), 2)
        assert [row["train/ratio_max"] for row in rows] == [1.0, 1.0]
        assert rows[0]["train/value_clip_fraction"] == 0.0

    def test_its_weights_are_saved_and_trained_by_one_optimizer(self, critic):
        made = ppo(critic)
        fit(made, 1)
        assert any(name.startswith("critic.") for name in made.state_dict())
        trained = {id(p) for group in made.optimizers().param_groups for p in group["params"]}
        assert trained == {
            id(p) for network in (made.policy, made.critic) for p in network.parameters()
        }


def test_critic_has_a_learning_rate_of_its_own():
    made = learner(PPO, advantage=GAE(), critic=Separate(lr=0.5))
    fit(made, 1)
    rates = {
        id(p): group["lr"] for group in made.optimizers().param_groups for p in group["params"]
    }
    assert {rates[id(p)] for p in made.policy.parameters()} == {1e-2}
    assert {rates[id(p)] for p in made.critic.parameters()} == {0.5}


def test_values_are_those_of_collection():
    """F4: with values computed anew, the clip would never act."""
    rows = fit(ppo("separate", batch=Batch(prompts=8, samples=4, epochs=4, minibatches=2)), 3)
    assert rows[-1]["train/value_clip_fraction"] > 0


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_value_clip_follows_the_scale_of_the_returns(scale):
    def scaled(responses):
        return [scale * float(x) for x in even(responses)]

    bounds = []
    for reward in (even, scaled):
        made = ppo(reward=reward)
        fit(made, 1)  # values begin at 0, so the returns have the scale of the rewards
        bounds.append(made.value_clip)
    assert bounds[0] > 0.01
    assert bounds[1] == pytest.approx(scale * bounds[0], rel=1e-4)


def test_an_iteration_stops_once_the_policy_has_moved_too_far():
    batch = Batch(prompts=8, samples=4, epochs=4, minibatches=2)
    free, held = fit(ppo(batch=batch), 3), fit(ppo(batch=batch, target_kl=1e-4), 3)
    assert [row["optimizer_step"] for row in free] == [8, 16, 24]
    assert held[-1]["optimizer_step"] < 24
    assert held[0]["train/early_stop"] == 1.0
    assert held[0]["train/steps_done"] == held[0]["optimizer_step"] / 8
    assert free[0]["train/early_stop"] == 0.0


class TestPTX:
    def test_imitates_beside_the_reward(self):
        flat = {
            "reward": lambda responses: [0.0] * len(responses),
            "ptx_prompts": list(SPLITS.train),
            "ptx_rows": 8,
        }
        rows = fit(learner(ptx_coefficient=1.0, **flat), 12)
        assert rows[-1]["train/ptx_loss"] < 0.7 * rows[0]["train/ptx_loss"]

    @pytest.mark.parametrize("token_budget", [64, 4096])
    def test_a_step_follows_both_losses(self, token_budget):
        """Each is divided by its own tokens: the reward's by those of the iteration, the
        imitation's by those of the stream."""
        ptx = {"ptx_coefficient": 0.5, "ptx_prompts": list(SPLITS.train), "ptx_rows": 5}
        descent = partial(torch.optim.SGD, lr=0.1)
        made = learner(
            optimizer=descent,
            batch=Batch(prompts=4, samples=4, token_budget=token_budget, max_norm=1e9),
            **ptx,
        )
        asked, sample = [], made.sample
        made.sample = lambda prompts: (asked.extend(prompts), sample(prompts))[1]
        fit(made, 1)
        twin = attached(learner(**ptx))
        batch, _ = twin.sample(asked)
        stream = extension(twin, PTX).rows(0)
        assert stream.mask.sum() != batch.mask.sum()
        logprobs, said = (
            twin.policy(batch.tokens, batch.mask).logprobs,
            twin.policy(stream.tokens, stream.mask).logprobs,
        )
        reward = (logprobs * batch.advantages)[batch.mask].sum() / batch.mask.sum()
        (-reward - 0.5 * said[stream.mask].mean()).backward()
        for (name, weight), old in zip(
            made.policy.named_parameters(), twin.policy.parameters(), strict=True
        ):
            torch.testing.assert_close(weight, old - 0.1 * old.grad, rtol=1e-4, atol=1e-6, msg=name)
            assert old.grad.any()

    def test_rows_depend_on_the_step_alone(self):
        made = learner(ptx_coefficient=0.5, ptx_prompts=list(SPLITS.train), ptx_rows=8)
        rows = [extension(made, PTX).rows(step).tokens for step in (0, 1, 1)]
        assert torch.equal(rows[1], rows[2])
        assert rows[0].shape != rows[1].shape or not torch.equal(rows[0], rows[1])
        halves = [extension(made, PTX).rows(1, rank, 2) for rank in (0, 1)]
        assert [len(half) for half in halves] == [4, 4]

    def test_rows_are_drawn_by_the_weights_of_their_sources(self):
        """As training prompts are: the same rows in the same order."""
        sources = {"few": list(SPLITS.train[:3]), "many": list(SPLITS.train[3:])}
        rows = [
            replace(prompt, source=name) for name, prompts in sources.items() for prompt in prompts
        ]
        weights = {"few": 3.0, "many": 1.0}
        made = learner(
            ptx_coefficient=0.5,
            splits=Splits(SPLITS.train, [], ptx=rows, ptx_weights=weights),
            ptx_rows=8,
        )
        drawn = [extension(made, PTX).rows(step) for step in range(3)]
        for part, prompts in zip(drawn, PromptLoader(rows, 8, weights=weights), strict=True):
            assert Counter(prompt.source for prompt in prompts) == {"few": 6, "many": 2}
            assert torch.equal(
                part.tokens, sft_batch(prompts, made.policy, policy_version=0).tokens
            )


class TestReference:
    def test_becomes_the_policy_every_so_often(self):
        made = learner(
            kl=Penalty("k3", 0.1, "loss"), reference_every=2, batch=Batch(prompts=4, samples=4)
        )
        drift = [row["train/kl_ref"] for row in fit(made, 5)]
        assert drift[0] == drift[2] == drift[4] == pytest.approx(0, abs=1e-6)
        assert min(drift[1], drift[3]) > 1e-6

    def test_is_measured_also_where_it_costs_nothing(self):
        rows = fit(learner(kl=Penalty("k1", 0.0, "reward")), 3)
        assert rows[0]["train/kl_coefficient"] == 0
        assert abs(rows[-1]["train/kl_ref"]) > 1e-6


def test_the_greedy_baseline_is_the_reward_of_the_greedy_answer():
    made = attached(learner(advantage=Greedy()))
    rows, _ = made.sample(SPLITS.train[:3])
    greedy = replace(made.rollout, temperature=0.0)
    greedy.sync(made.policy, iteration=0)
    answers = greedy.generate(SPLITS.train[:3], samples=1, iteration=0)
    want = torch.tensor(made.reward(answers).values).repeat_interleave(4)
    assert torch.equal(torch.where(rows.mask, rows.values, 0.0).amax(1), want)


class TestUpdateDistance:
    """`ratio=kl_penalty` is steered by how far the policy is from the old one when the iteration's
    steps are done."""

    @pytest.mark.parametrize(
        "batch", [Batch(prompts=8, samples=4), Batch(prompts=8, samples=4, minibatches=4)]
    )
    def test_is_measured_after_the_last_step(self, batch):
        made = ppo(ratio=(ratio := KLPenalty(coefficient=1.0, target=1e-9)), batch=batch)
        kept = []
        after_update = extension(made, UpdateKL).after_update
        extension(made, UpdateKL).after_update = lambda rows, num_fresh: (
            kept.append(rows),
            after_update(rows, num_fresh),
        )
        [row] = fit(made, 1)
        [rows] = kept
        d = torch.where(
            rows.mask, made.scorer.score(rows, made.policy).logprobs - rows.old_logprobs, 0.0
        )
        assert row["train/kl_update"] == pytest.approx(
            float((d.exp() - 1 - d)[rows.mask].mean()), rel=1e-4
        )
        assert row["train/kl_update"] > 1e-5
        assert ratio.coefficient == 2.0
        if batch.minibatches == 1:
            assert row["train/kl_old"] == 0.0, "in front of the only step"

    def test_replayed_rows_are_left_out(self):
        """They tell how far the policy went in earlier iterations."""
        calm = {
            "batch": Batch(prompts=8, samples=4, epochs=2),
            "optimizer": partial(torch.optim.SGD, lr=0.0),
        }
        made = ppo(replay_fraction=1.0, target_kl=1e-6, **calm)
        fit(made, 1)
        rows = extension(made, Replay).rows
        rows.old_logprobs.sub_(0.5)
        experience = rows.concat([rows.select(torch.arange(len(rows)))])
        for version, moved in ((made.iteration, True), (made.iteration - 1, False)):
            made.kl_stats.zero_()
            micro = replace(
                experience, policy_version=torch.full_like(experience.policy_version, version)
            )
            made.loss(micro, Totals(micro.mask.sum(), micro.mask.any(1).sum()))
            assert bool(made.kl_stats[0] > 0.01) is moved


@pytest.mark.parametrize("kl", [Penalty("k3", 0.1, "loss"), Full(0.1)])
@pytest.mark.parametrize("more", [{"replay_fraction": 1.0}, {"sampling": Dynamic()}])
def test_the_reference_of_old_rows_is_the_new_one_after_a_reset(more, kl):
    """With a reference that follows every iteration and one step in each, the distance is
    always 0."""
    rows = fit(learner(kl=kl, reference_every=1, batch=Batch(prompts=8, samples=3), **more), 4)
    assert [row["train/kl_ref"] for row in rows] == pytest.approx([0.0] * 4, abs=1e-9)
    assert any(
        row.get("train/replayed_fraction", 0) > 0 or row["train/stale_fraction"] > 0 for row in rows
    )


class TestKLInTheReward:
    def test_is_not_in_the_loss_too(self):
        made = learner(kl=Penalty("k3", 0.5, "reward"))
        batch = collected(made)
        elsewhere = replace(batch, ref_logprobs=batch.ref_logprobs - 1.0)
        assert torch.equal(gradients(made, batch), gradients(made, elsewhere))

    def test_reference_is_read_at_the_temperature_of_sampling(self):
        """The start policy is at distance 0 from itself at any temperature."""
        for where in ("reward", "loss"):
            made = learner(
                kl=Penalty("k3" if where == "loss" else "k1", 0.1, where),
                rollout=Local(max_tokens=8, temperature=0.6),
            )
            assert fit(made, 1)[0]["train/kl_ref"] == pytest.approx(0.0, abs=1e-9)


def test_failures_of_the_greedy_baseline_are_counted():
    def sometimes(responses):
        good = [r.prompt.id != SPLITS.train[0].id or len(responses) > 4 for r in responses]
        values = [
            float(len(r.tokens)) if ok else None for r, ok in zip(responses, good, strict=True)
        ]
        return Scores(values, correct=good, counts={"timeouts": 1})

    made = attached(learner(advantage=Greedy(), reward=sometimes))
    made.sample(SPLITS.train[:4])
    found = made.meter.compute()
    assert found["train/greedy_unscored_fraction"] == 0.25
    assert found["reward/timeouts"] == 2
