"""The loop: what an optimizer step is made of, and what it must not depend on."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from rlmods.advantage import EMA, GAE, RLOO, Accept, Greedy, GroupMean, GroupNorm, ReinforcePP
from rlmods.aggregation import FixedLength, SequenceMean
from rlmods.algo import Batch
from rlmods.critic import Separate, Shared
from rlmods.kl import Full, Penalty
from rlmods.ratio import CISPO, Clipped, GeometricMean, KLPenalty, LogLikelihood, Soft, Unclipped
from rlmods.rollout import Local
from rlmods.sampling import Dynamic
from rlmods.training.evaluation import Validation
from rlmods.training.extensions import Replay
from rlmods.types import Experience, Scores, UserError
from tests.support.tiny_setup import SPLITS, attached, close, collected, even, fit, gradients, learner, policy

LOSSES = {
    "grpo": {"kl": Penalty("k3", 0.04, "loss"), "aggregation": SequenceMean()},
    "dapo": {"ratio": Clipped(0.2, 0.28)},
    "dr_grpo": {"advantage": GroupMean(), "aggregation": FixedLength(8)},
    "gspo": {"ratio": Clipped(3e-4, 4e-4, level="sequence"), "aggregation": SequenceMean()},
    "gspo_token": {"ratio": Clipped(3e-4, 4e-4, level="sequence_token"), "aggregation": SequenceMean()},
    "rloo": {"advantage": RLOO(), "ratio": Unclipped()},
    "soft": {"ratio": Soft(), "aggregation": SequenceMean()},
    "cispo": {"ratio": CISPO()},
    "gmpo": {"ratio": GeometricMean(), "aggregation": SequenceMean()},
    "reinforce": {"advantage": EMA(), "ratio": Unclipped()},
    "reinforce_pp": {"advantage": ReinforcePP(), "kl": Penalty("k1", 0.05, "reward")},
    "reinforce_pp_baseline": {"advantage": ReinforcePP(baseline="group"), "kl": Penalty("k1", 0.05, "reward")},
    "remax": {"advantage": Greedy(), "ratio": Unclipped()},
    "kl_penalty": {"ratio": KLPenalty()},
    "accept": {"advantage": Accept(), "ratio": LogLikelihood()},
    "entropy": {"entropy_coefficient": 0.1},
    "ppo": {"advantage": GAE(whiten=True), "critic": Separate(), "kl": Penalty("k1", 0.1, "reward")},
    "ppo_shared": {"advantage": GAE(), "critic": Shared(coefficient=0.5)},
    "full_kl": {"kl": Full(0.3)},
    "exact_kl": {"kl": Penalty("k3", 0.1, "loss", gradient="exact")},
}


def off_policy(**change):
    """A learner and rows whose old log-probs come from another policy, so that ratios and clips are at work."""
    made = learner(**deepcopy(change))
    batch = collected(made)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in made.policy.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    return made, batch


@pytest.mark.parametrize("name", LOSSES)
class TestInvariances:
    """Gradients do not depend on how rows are cut, padded, ordered, or on what stands in masked slots."""

    def test_token_budget(self, name):
        made, batch = off_policy(**LOSSES[name])
        found = []
        for budget in (1, 40, 10**6):
            made.microbatches.token_budget = budget
            found.append(gradients(made, batch))
        close(found[0], found[2])
        close(found[1], found[2])

    def test_padding_and_order(self, name):
        made, batch = off_policy(**LOSSES[name])
        want = gradients(made, batch)
        wide = Experience.concat([batch, batch.select(torch.zeros(0, dtype=torch.long))])
        pad = {k: torch.nn.functional.pad(v, (0, 50)) if v is not None and v.ndim == 2 else v for k, v in wide.tensors().items()}
        close(gradients(made, Experience(**pad)), want)
        close(gradients(made, batch.select(torch.randperm(len(batch), generator=torch.Generator().manual_seed(0)))), want)

    @pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e6])
    def test_garbage_in_masked_slots(self, name, garbage):
        made, batch = off_policy(**LOSSES[name])
        want = gradients(made, batch)
        poison = {
            k: v.masked_fill(~batch.mask, garbage)
            for k, v in batch.tensors().items()
            if v is not None and v.ndim == 2 and v.is_floating_point()
        }
        torch.testing.assert_close(gradients(made, replace(batch, **poison)), want, rtol=0, atol=0)


class TestFirstMinibatch:
    """The policy that sampled is the policy that learns: ratio 1, nothing clipped, the gradient REINFORCE's."""

    def test_ratio_is_exactly_one(self):
        rows = fit(learner(batch=Batch(prompts=4, samples=4)), 3)
        for row in rows:
            assert row["train/ratio_max"] == 1.0
            assert row["train/clip_fraction/low"] == row["train/clip_fraction/high"] == 0.0
            assert row["train/kl_old"] == 0.0
            assert row["train/grad_norm"] > 0

    def test_later_minibatches_move(self):
        rows = fit(learner(batch=Batch(prompts=4, samples=4, epochs=2, minibatches=2)), 2)
        assert rows[0]["train/ratio_max"] > 1.01
        assert rows[0]["train/clip_fraction/low"] + rows[0]["train/clip_fraction/high"] > 0
        assert rows[0]["optimizer_step"] == 4

    def test_rows_keep_their_own_old_logprobs(self):
        made = learner(batch=Batch(prompts=4, samples=4, minibatches=4), ratio=Unclipped())
        seen = []
        original = made.loss
        made.loss = lambda micro, totals: (seen.append((micro.tokens, micro.old_logprobs, micro.mask)), original(micro, totals))[1]
        start = policy()
        fit(made, 1)
        assert len(seen) >= 4
        for tokens, old, mask in seen[1:]:
            want = start(tokens, mask).logprobs
            known = mask & ~old.isnan()
            torch.testing.assert_close(old[known], want[known], rtol=0, atol=1e-5)
        assert sum(int((mask & old.isnan()).sum()) for _, old, mask in seen) == int(seen[0][2].sum())

    def test_gradient_is_reinforce(self):
        made = learner()
        batch = collected(made)
        have = gradients(made, batch)
        made.policy.zero_grad()
        logprobs = made.policy(batch.tokens, batch.mask).logprobs
        loss = -(logprobs * torch.where(batch.mask, batch.advantages, 0.0)).sum() / batch.mask.sum()
        loss.backward()
        close(have, torch.cat([p.grad.flatten() for p in made.policy.parameters()]))

    def test_every_clip_coincides_on_policy(self):
        want = gradients(made := learner(), batch := collected(made))
        others = (CISPO(), Unclipped(), LogLikelihood(), KLPenalty(), GeometricMean())
        for ratio in (Clipped(0.1, 0.5), Clipped(level="sequence_token"), Soft(), *others):
            made.ratio = ratio
            close(gradients(made, batch), want)


class TestMasks:
    def test_all_masked_gives_zero_and_finite(self):
        made = learner()
        batch = collected(made)
        found = gradients(made, batch.without_loss())
        assert found.abs().sum() == 0
        assert torch.isfinite(found).all()

    def test_overlong_rows_leave_numerator_and_denominator(self):
        made = learner(overlong_filter=True, rollout=Local(max_tokens=3))
        batch = collected(made)
        cut = torch.tensor([not bool(m.any()) for m in batch.mask])
        assert 0 < int(cut.sum()) < len(batch)
        close(gradients(made, batch), gradients(made, batch.select(~cut)))

    def test_unscored_row_leaves_its_group(self):
        """D4: None is not 0."""

        def abstains(responses):
            return [None if i == 0 else float(i % 2) for i in range(len(responses))]

        made = learner(reward=abstains)
        batch = collected(made, 1)
        assert not batch.mask[0].any()
        assert batch.advantages[0].abs().sum() == 0
        rest = GroupNorm()(batch.rewards[1:], batch.mask[1:], batch.group[1:], None).advantages
        torch.testing.assert_close(batch.advantages[1:], rest)

    def test_eos_is_learned(self):
        batch = collected(learner())
        rows = torch.arange(len(batch))
        last = batch.tokens[rows, batch.lengths - 1]
        ended = last < 25
        assert 0 < int(ended.sum()) < len(batch)
        assert batch.mask[rows, batch.lengths - 1].all()


class TestKL:
    def test_in_the_reward_is_taken_off(self):
        made = learner(kl=Penalty("k1", 0.5, "reward"))
        with torch.no_grad():
            for p in made.reference.policy.parameters():
                p.add_(torch.randn_like(p) * 0.1)
        batch = collected(made)
        drift = torch.where(batch.mask, batch.old_logprobs - batch.ref_logprobs, 0.0).sum(1)
        plain = torch.tensor([float(batch.tokens[i][batch.mask[i]][0] % 2 == 0) for i in range(len(batch))])
        torch.testing.assert_close(batch.rewards.sum(1), plain - 0.5 * drift, rtol=1e-4, atol=1e-5)
        assert drift.abs().max() > 0.01

    def test_no_reference_where_none_is_asked_for(self):
        assert not learner().reference
        assert learner(kl=Penalty("k3", 0.04, "loss")).reference

    def test_reference_never_moves_and_is_not_saved(self):
        made = learner(kl=Penalty("k3", 0.04, "loss"))
        before = [p.clone() for p in made.reference.policy.parameters()]
        rows = fit(made, 3)
        assert all(torch.equal(a, b) for a, b in zip(before, made.reference.policy.parameters(), strict=True))
        assert not any(p.requires_grad for p in made.reference.policy.parameters())
        assert set(made.state_dict()) == {f"policy.{name}" for name in made.policy.state_dict()}
        assert made.state()["frozen"]["reference"].keys() == {"origin"}
        assert rows[0]["train/kl_ref"] == pytest.approx(0, abs=1e-6)
        assert rows[-1]["train/kl_ref"] > 1e-5

    def test_larger_coefficient_stays_closer(self):
        drifts = [fit(learner(kl=Penalty("k3", c, "loss", gradient="exact")), 15)[-1]["train/kl_ref"] for c in (1e-6, 5.0)]
        assert drifts[1] < 0.5 * drifts[0]


@pytest.mark.filterwarnings("ignore:sampling drops groups by their total reward")
class TestDynamicSampling:
    def test_says_when_it_filters_on_a_reward_that_knows_no_correctness(self):
        made = attached(learner(sampling=Dynamic(), reward=lambda r: [1.0] * len(r)))
        with pytest.warns(UserWarning, match="does not report correctness"):
            made.sample(SPLITS.train[:2])

    def test_a_prompt_drawn_again_gets_other_answers(self):
        made = attached(learner())
        first, _ = made.sample(SPLITS.train[:2])
        again, _ = made.sample(SPLITS.train[:2])
        assert not torch.equal(first.tokens, again.tokens)

    def test_a_group_that_the_overlong_filter_emptied_is_not_kept(self):
        made = attached(learner(sampling=Dynamic(), overlong_filter=True, rollout=Local(max_tokens=1)))
        experience, keep = made.sample(SPLITS.train[:8])
        for group in experience.group[keep].unique():
            assert experience.mask[experience.group == group].any()
        assert keep.any()

    def test_flat_groups_are_drawn_again(self):
        rows = fit(learner(sampling=Dynamic(), batch=Batch(prompts=6, samples=2)), 3)
        assert max(row["train/draws"] for row in rows) > 1
        assert all(row["train/short_of_groups"] == 0 for row in rows)

    @pytest.mark.parametrize("fallback", ["train", "skip"])
    def test_hopeless_reward_ends(self, fallback):
        made = learner(sampling=Dynamic(), reward=lambda r: [1.0] * len(r), max_draws=3, fallback=fallback)
        before = torch.cat([p.flatten().clone() for p in made.policy.parameters()])
        rows = fit(made, 2)
        assert [row["train/draws"] for row in rows] == [3, 3]
        assert [row["train/flat_group_fraction"] for row in rows] == [1, 1]
        assert [row["train/short_of_groups"] for row in rows] == [1, 1]
        assert rows[-1]["optimizer_step"] == 0
        assert torch.equal(before, torch.cat([p.flatten() for p in made.policy.parameters()]))

    def test_hopeless_reward_can_stop_the_run(self):
        made = learner(sampling=Dynamic(), reward=lambda r: [1.0] * len(r), max_draws=2, fallback="error")
        with pytest.raises(UserError, match=r"after 2 draws only 0 of 4 groups.*algo\.max_draws"):
            fit(made, 1)

    def test_filter_reads_correctness_not_the_shaped_reward(self):
        def shaped(responses):
            return Scores([float(i) for i in range(len(responses))], correct=[True] * len(responses))

        rows = fit(learner(sampling=Dynamic(), reward=shaped, max_draws=1), 1)
        assert rows[0]["train/flat_group_fraction"] == 1
        assert rows[0]["optimizer_step"] == 0

    def test_short_iteration_trains_on_whole_groups_only(self):
        """The groups that stand in carry no loss: the step equals one on the kept groups alone."""
        made = learner(sampling=Dynamic(), max_draws=1, batch=Batch(prompts=4, samples=2))
        experience, keep = attached(made).sample(SPLITS.train[:4])
        assert 0 < int(keep.sum()) < len(keep)
        made.buffer.push(experience, keep)
        close(gradients(made, made.buffer.pop(4)), gradients(made, experience.select(keep)))

    def test_surplus_waits_or_is_dropped(self):
        kept = fit(learner(sampling=Dynamic(), batch=Batch(prompts=6, samples=2)), 4)
        assert sum(row["train/stale_fraction"] for row in kept) > 0
        dropped = fit(learner(sampling=Dynamic(), batch=Batch(prompts=6, samples=2), surplus="drop"), 4)
        assert sum(row["train/surplus_groups"] for row in dropped) > 0
        assert sum(row["train/stale_fraction"] for row in dropped) == 0

    def test_surplus_never_exceeds_an_iteration(self):
        """What one rank has too much of waits for the others, and would age; the newest stay, the others are counted."""
        made = attached(learner(sampling=Dynamic(), batch=Batch(prompts=2, samples=2)))
        for start in range(0, 24, 2):
            made.buffer.push(*made.sample(SPLITS.train[start : start + 2]))
        groups = torch.unique(made.buffer.kept.group)
        kept = made.carry_over()
        assert torch.unique(kept.group).tolist() == groups[-2:].tolist()
        found = made.meter.compute()
        assert found["train/dropped_groups"] == len(groups) - 2 > 0
        assert made.buffer.num_groups == 2

    def test_surplus_is_weighed_against_the_policy_that_sampled_it(self):
        made = learner(sampling=Dynamic(), batch=Batch(prompts=6, samples=2))
        start = policy()
        fit(made, 1)
        waiting = made.buffer.kept
        assert len(waiting)
        want = start(waiting.tokens, waiting.mask).logprobs
        torch.testing.assert_close(waiting.old_logprobs[waiting.mask], want[waiting.mask], rtol=0, atol=1e-5)


class TestLearning:
    @pytest.mark.parametrize(
        "name",
        ["grpo", "dapo", "dr_grpo", "gspo", "rloo", "soft", "cispo", "gmpo", "reinforce", "reinforce_pp", "remax", "accept"],
    )
    def test_reward_rises(self, name):
        rows = fit(learner(batch=Batch(prompts=8, samples=8, minibatches=2), **deepcopy(LOSSES[name])), 15)
        assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.15

    def test_reversed_reward_reverses_learning(self):
        def odd(responses):
            return [float(r.tokens[0] % 2 == 1) for r in responses]

        rows = fit(learner(batch=Batch(prompts=8, samples=8), reward=odd), 15)
        assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.1

    def test_entropy_bonus_raises_entropy(self):
        flat = {"reward": lambda r: [0.0] * len(r), "batch": Batch(prompts=4, samples=4)}
        rows = fit(learner(entropy_coefficient=1.0, **flat), 12)
        assert rows[-1]["train/entropy"] > rows[0]["train/entropy"]


class TestValidation:
    def test_first_and_later_ones_use_one_precision(self):
        seen = []

        def spy(responses):
            seen.append(torch.is_autocast_enabled("cpu"))
            return even(responses)

        made = learner(reward=spy, validation=Validation(every=1), validation_prompts=list(SPLITS.val))
        fit(made, 1, precision="bf16-mixed")
        assert seen == [True, True, True]  # before, in the training step, after


def test_logprobs_follow_a_temperature_that_the_rollout_changes():
    made = attached(learner(rollout=Local(max_tokens=8, temperature=0.6)))
    made.rollout = made.scorer.rollout = replace(made.rollout, temperature=1.4)
    made.rollout.sync(made.policy, iteration=0)
    rows, _ = made.sample(SPLITS.train[:4])
    rows = made.scorer.add_old_logprobs(rows, torch.ones(len(rows), dtype=torch.bool))
    torch.testing.assert_close(rows.old_logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4)


def test_extensions_of_the_same_name_are_not_saved_over_each_other():
    made = learner(replay_fraction=0.5)
    made.extensions.append(Replay(0.5))
    with pytest.raises(ValueError, match=r"need different names to be saved: .*Replay, Replay"):
        made.state()


def test_an_empty_column_name_is_no_reason_to_measure_held_out_rows():
    made = learner(validation_prompts=[replace(prompt, meta={"": "0"}) for prompt in SPLITS.val])
    assert made.held_out_metrics() == {}
