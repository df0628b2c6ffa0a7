"""The loop: what an optimizer step is made of, and what it must not depend on."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from rlmods.advantage import (
    EMA,
    GAE,
    GDPO,
    RLOO,
    Accept,
    Greedy,
    GroupMean,
    GroupNorm,
    LengthWeighted,
    MaxRL,
    NStep,
    Process,
    ReinforcePP,
)
from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.algo import PPO, Batch, PolicyGradient
from rlmods.critic import Separate, Shared
from rlmods.errors import UserError
from rlmods.kl import Adaptive, Full, Penalty, Ramp
from rlmods.needs import RatioNeeds
from rlmods.ops import rewards_to_go, whiten
from rlmods.ratio import (
    CISPO,
    DPPO,
    TOPR,
    Clipped,
    GeometricMean,
    KLPenalty,
    LogLikelihood,
    Soft,
    Unclipped,
)
from rlmods.reward import WeightedSum
from rlmods.reward.scores import as_scores
from rlmods.rollout import Local, MultiTurn
from rlmods.sampling import Dynamic
from rlmods.tokens import ClipCov, HighEntropy, KLCov, OffPolicy
from rlmods.training.collate import collate_unscored
from rlmods.training.evaluation import Validation
from rlmods.training.extensions.base import Extension
from rlmods.types import Credit, Prompt, Response, Scores, Surrogate, Totals
from tests.support import batches
from tests.support.environments import Script
from tests.support.offline import assert_invariant
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    close,
    collected,
    even,
    fit,
    flat,
    flat_gradient,
    gradients,
    half_flat,
    learner,
    perturb,
    policy,
)

LOSSES = {
    "grpo": {"kl": Penalty("k3", 0.04, "loss"), "aggregation": SequenceMean()},
    "dapo": {"ratio": Clipped(0.2, 0.28)},
    "dr_grpo": {"advantage": GroupMean(), "aggregation": FixedLength(8)},
    "gspo": {"ratio": Clipped(3e-4, 4e-4, level="sequence"), "aggregation": SequenceMean()},
    "gspo_token": {
        "ratio": Clipped(3e-4, 4e-4, level="sequence_token"),
        "aggregation": SequenceMean(),
    },
    "rloo": {"advantage": RLOO(), "ratio": Unclipped()},
    "soft": {"ratio": Soft(), "aggregation": SequenceMean()},
    "cispo": {"ratio": CISPO()},
    "gmpo": {"ratio": GeometricMean(), "aggregation": SequenceMean()},
    "reinforce": {"advantage": EMA(), "ratio": Unclipped()},
    "reinforce_pp": {"advantage": ReinforcePP(), "kl": Penalty("k1", 0.05, "reward")},
    "reinforce_pp_baseline": {
        "advantage": ReinforcePP(baseline="group"),
        "kl": Penalty("k2", 0.05, "loss"),
    },
    "remax": {"advantage": Greedy(), "ratio": Unclipped()},
    "kl_penalty": {"ratio": KLPenalty()},
    "accept": {"advantage": Accept(), "ratio": LogLikelihood()},
    "entropy": {"entropy_coefficient": 0.1},
    "ppo": {
        "advantage": GAE(whiten=True),
        "critic": Separate(),
        "kl": Penalty("k1", 0.1, "reward"),
    },
    "ppo_shared": {"advantage": GAE(), "critic": Shared(coefficient=0.5)},
    "max_rl": {"advantage": MaxRL(), "ratio": TOPR()},
    "gdpo": {"advantage": GDPO()},
    "n_step": {"advantage": NStep(2), "critic": Separate(), "ratio": DPPO(high=1e-3, low=1e-3)},
    "full_kl": {"kl": Full(0.3)},
    "high_entropy": {"tokens": HighEntropy(0.3)},
    "clip_cov": {"tokens": ClipCov(0.2, low=0.0)},
    "kl_cov": {"tokens": KLCov(0.2), "ratio": Unclipped()},
    "off_policy": {"tokens": OffPolicy(1e-3), "aggregation": SequenceMean()},
    "positive": {"positive_coefficient": 0.1},
    "exact_kl": {"kl": Penalty("k3", 0.1, "loss", gradient="exact")},
}


def off_policy(**change):
    """A learner and rows whose old log-probs come from another policy, so that ratios and clips are
    at work."""
    made = learner(**deepcopy(change))
    batch = collected(made)
    perturb(made.policy)
    return made, batch


QUICK = ("grpo", "dapo", "gspo", "reinforce_pp", "ppo", "ppo_shared")
"""Losses that differ in what they read. tests/test_loss_invariances.py has the parts of the
others."""


@pytest.fixture(
    scope="class",
    params=[pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in LOSSES],
)
def invariant(request):
    """A learner with off-policy rows, and their gradient: `gradients` leaves all three as they
    are."""
    made, batch = off_policy(**LOSSES[request.param])
    return made, batch, gradients(made, batch)


class TestInvariances:
    """Gradients do not depend on how rows are cut, padded, ordered, or on what stands in masked
    slots."""

    def test_microbatches_padding_and_order(self, invariant):
        made, batch, _ = invariant
        assert_invariant(made, batch)

    @pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e6])
    def test_garbage_in_masked_slots(self, invariant, garbage):
        made, batch, want = invariant
        poison = {
            k: v.masked_fill(~batch.mask, garbage)
            for k, v in batch.tensors().items()
            if v is not None and v.ndim == 2 and v.is_floating_point()
        }
        torch.testing.assert_close(gradients(made, replace(batch, **poison)), want, rtol=0, atol=0)


class TestFirstMinibatch:
    """The policy that sampled is the policy that learns: ratio 1, nothing clipped, the gradient
    REINFORCE's."""

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

    @pytest.mark.parametrize("steps", [{"epochs": 3, "minibatches": 1}, {"minibatches": 4}])
    def test_later_steps_compare_with_the_policy_that_sampled(self, steps):
        """With one minibatch too: from the second epoch on, its own old log-probabilities are those
        of the start, not the new ones."""
        made = learner(batch=Batch(prompts=4, samples=4, **steps))
        seen = []
        original = made.loss
        made.loss = lambda micro, totals: (seen.append(micro), original(micro, totals))[1]
        start = policy()
        [row] = fit(made, 1)
        assert row["train/ratio_max"] > 1.01
        assert row["train/kl_old"] > 0
        assert len(seen) == made.optimizer_steps
        assert seen[0].on_policy.all()
        for micro in seen[1:]:
            assert not micro.on_policy.any()
            want = start(micro.tokens, micro.mask).logprobs[micro.mask]
            torch.testing.assert_close(micro.old_logprobs[micro.mask], want, rtol=0, atol=1e-5)

    def test_old_logprobs_reach_a_ratio_that_reads_them(self):
        made, batch = off_policy()
        seen = []

        class Spy:
            needs = RatioNeeds(old_logprobs=True)

            def __call__(self, log_ratio, advantages, mask, old_logprobs):
                seen.extend(old_logprobs[mask].tolist())
                return Unclipped()(log_ratio, advantages, mask)

        made.set_ratio(Spy())
        gradients(made, batch)
        assert sorted(seen) == sorted(batch.old_logprobs[batch.mask].tolist())
        seen.clear()
        on_policy = replace(batch, on_policy=torch.ones_like(batch.on_policy))
        gradients(made, on_policy)  # as on the first minibatch: those of the loss's own forward
        logprobs = made.policy(batch.tokens, batch.mask).logprobs[batch.mask]
        assert sorted(seen) == pytest.approx(sorted(logprobs.tolist()), abs=1e-5)

    def test_entropy_reaches_who_declares_it_with_its_gradient(self):
        """Terms of an extension and of an algorithm equal the entropy bonus of the loop."""

        class Bonus(Extension):
            needs_entropy = True

            def loss_term(self, micro, output, totals):
                return -0.1 * TokenMean()(output.entropy, micro.mask, totals)

        class Mine(PolicyGradient):
            needs_entropy = True

            def objective(self, micro, output, old_logprobs):
                return super().objective(micro, output, old_logprobs) + 0.1 * output.entropy

        made, batch = off_policy()
        without = gradients(made, batch)
        made.add_extension(Bonus())
        expected = gradients(off_policy(entropy_coefficient=0.1)[0], batch)
        close(gradients(made, batch), expected)
        close(gradients(off_policy(kind=Mine)[0], batch), expected)
        assert (expected - without).norm() > 1e-3 * without.norm()

    def test_a_term_without_gradient_is_an_error(self):
        class Undeclared(Extension):
            def loss_term(self, micro, output, totals):
                return TokenMean()(output.entropy, micro.mask, totals)

        made, batch = off_policy()
        made.add_extension(Undeclared())
        with pytest.raises(UserError, match="Undeclared: loss_term has no gradient"):
            gradients(made, batch)

    def test_entropy_reaches_a_ratio_that_reads_it_with_its_gradient(self):
        made, batch = off_policy()

        class Bonus:
            needs = RatioNeeds(entropy=True)

            def __call__(self, log_ratio, advantages, mask, entropy):
                return Surrogate(entropy.square(), torch.zeros_like(mask))

        made.set_ratio(Bonus())
        have = gradients(made, batch)
        made.policy.zero_grad()
        logits = made.policy.model(input_ids=batch.tokens).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        (-entropy[batch.mask[:, 1:]].square().mean()).backward()
        want = flat_gradient(made.policy)
        assert want.abs().max() > 1e-4
        close(have, want)

    def test_gradient_is_reinforce(self):
        made = learner()
        batch = collected(made)
        have = gradients(made, batch)
        made.policy.zero_grad()
        logprobs = made.policy(batch.tokens, batch.mask).logprobs
        loss = -(logprobs * torch.where(batch.mask, batch.advantages, 0.0)).sum() / batch.mask.sum()
        loss.backward()
        close(have, flat_gradient(made.policy))

    def test_every_clip_coincides_on_policy(self):
        want = gradients(made := learner(), batch := collected(made))
        others = (
            CISPO(),
            Unclipped(),
            LogLikelihood(),
            KLPenalty(),
            GeometricMean(),
            TOPR(),
            DPPO(),
        )
        for ratio in (Clipped(0.1, 0.5), Clipped(level="sequence_token"), Soft(), *others):
            made.set_ratio(ratio)
            close(gradients(made, batch), want)


class TestMasks:
    def test_rows_without_loss_have_a_gradient_of_0(self):
        made = learner()
        batch = collected(made)
        assert gradients(made, batch.without_loss()).abs().sum() == 0

    @pytest.mark.parametrize("aggregation", [TokenMean(), SequenceMean(), FixedLength(8)])
    def test_overlong_rows_leave_numerator_and_denominator(self, aggregation):
        made = learner(overlong_filter=True, rollout=Local(max_tokens=3), aggregation=aggregation)
        batch = collected(made)
        last = batch.tokens[torch.arange(len(batch)), batch.lengths - 1]
        cut = torch.tensor([int(token) not in made.policy.eos_ids for token in last])
        assert torch.equal(batch.mask.any(1), ~cut)
        assert 0 < int(cut.sum()) < len(batch)
        close(gradients(made, batch), gradients(made, batch.select(~cut)))

    def test_a_game_that_ran_out_of_turns_is_not_overlong(self):
        game = MultiTurn(Local(max_tokens=3), Script(["a"] * 9, max_turns=2))
        batch = collected(learner(overlong_filter=True, rollout=game))
        assert 0 < int(batch.mask.any(1).sum()) < len(batch)

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


def drifted(**change):
    """A learner whose policy is at a distance from the reference."""
    made = learner(**deepcopy(change))
    perturb(made.reference.policy, 0.1, seed=2)
    return made


def kl_to_go(batch):
    """log pi - log pi_ref summed over the true slots at t or later: a loop."""
    total = torch.zeros_like(batch.rewards)
    for i, mask in enumerate(batch.mask):
        slots = mask.nonzero().flatten().tolist()
        for t in slots:
            total[i, t] = sum(
                batch.old_logprobs[i, s] - batch.ref_logprobs[i, s] for s in slots if s >= t
            )
    return total


def stepped(responses):
    """A reward on every other token and on the last one."""
    tokens = [
        [float(t % 2) if k % 2 or k == len(r.tokens) - 1 else None for k, t in enumerate(r.tokens)]
        for r in responses
    ]
    return Scores([float(sum(x or 0.0 for x in row)) for row in tokens], tokens=tokens)


IN_REWARD = {
    "fixed": Penalty("k1", 0.5, "reward"),
    "adaptive": Adaptive("k1", 0.5, "reward", target=0.01, horizon=16.0),
    "ramp": Ramp("k1", 0.5, "reward", final=0.1, iterations=4),
}


@pytest.mark.parametrize("kind", IN_REWARD)
class TestKLBesideNormalisedRewards:
    """Mean, standard deviation and flatness are those of the rewards; the KL is then subtracted per
    token."""

    def made(self, kind, **change):
        made = drifted(kl=IN_REWARD[kind], **change)
        if kind != "fixed":
            made.kl.on_iteration_end({"train/kl_ref": 1.0, "train/responses": 16.0})
            assert made.kl.coefficient != 0.5
        return made

    def test_flat_groups_have_no_advantage_from_rewards(self, kind):
        made = self.made(kind, reward=lambda responses: [0.7] * len(responses))
        batch = collected(made)
        torch.testing.assert_close(
            batch.advantages, -made.kl.coefficient * kl_to_go(batch), rtol=1e-5, atol=1e-5
        )
        made.kl = Penalty("k1", 0.0, "reward")
        assert (collected(made).advantages == 0).all()

    @pytest.mark.parametrize(("advantage", "reward"), [(GroupNorm(), even), (Process(), stepped)])
    def test_is_subtracted_from_the_advantages(self, kind, advantage, reward):
        made = self.made(kind, advantage=advantage, reward=reward)
        batch = collected(made)
        given = {"steps": batch.steps} if reward is stepped else {}
        from_rewards = advantage(batch.rewards, batch.mask, batch.group, None, **given).advantages
        assert from_rewards.abs().max() > 0.5
        assert kl_to_go(batch).abs().max() > 0.01
        torch.testing.assert_close(
            batch.advantages,
            from_rewards - made.kl.coefficient * kl_to_go(batch),
            rtol=1e-5,
            atol=1e-5,
        )
        plain = torch.tensor(as_scores(reward(self.responses(made)), len(batch), "").values)
        torch.testing.assert_close(torch.where(batch.mask, batch.rewards, 0.0).sum(1), plain)

    def responses(self, made):
        made.rollout.sync(made.policy, iteration=0)
        return made.rollout.generate(SPLITS.train[:4], samples=4, iteration=0)

    def test_masked_slots_are_skipped(self, kind):
        made = self.made(kind)
        batch = collected(made)
        holes = batch.mask & (
            torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0)) < 0.7
        )
        rewards = torch.where(
            holes & (holes.cumsum(1) == holes.sum(1, keepdim=True)), torch.rand(len(batch), 1), 0.0
        )
        estimated = made.estimate_advantages(
            replace(batch, mask=holes, rewards=rewards.masked_fill(~holes, math.nan)),
            Scores([0.0] * len(batch)),
        )
        from_rewards = GroupNorm()(rewards, holes, batch.group).advantages
        torch.testing.assert_close(
            estimated.advantages,
            from_rewards - made.kl.coefficient * kl_to_go(estimated),
            rtol=1e-5,
            atol=1e-5,
        )

    @pytest.mark.parametrize("advantage", [RLOO(), GroupMean(), LengthWeighted()])
    def test_estimators_that_only_centre_have_it_in_the_rewards(self, kind, advantage):
        made = self.made(kind, advantage=advantage, reward=lambda responses: [0.7] * len(responses))
        batch = collected(made)
        totals = 0.7 - made.kl.coefficient * torch.where(
            batch.mask, batch.old_logprobs - batch.ref_logprobs, 0.0
        ).sum(1)
        torch.testing.assert_close(
            torch.where(batch.mask, batch.rewards, 0.0).sum(1), totals, rtol=1e-5, atol=1e-5
        )
        assert torch.equal(
            batch.advantages, advantage(batch.rewards, batch.mask, batch.group).advantages
        )
        assert batch.advantages.abs().max() > 1e-3


WHITENED = {
    "gae": {"kind": PPO, "advantage": GAE(whiten=True), "critic": Separate()},
    "reinforce_pp": {"advantage": ReinforcePP()},
    "reinforce_pp_baseline": {"advantage": ReinforcePP(baseline="group")},
}
FILTERS = {
    "none": {},
    "overlong": {"overlong_filter": True, "rollout": Local(max_tokens=3)},
    "dynamic": {"sampling": Dynamic(), "batch": Batch(prompts=6, samples=3, minibatches=2)},
    "unscored": {
        "reward": lambda responses: [
            None if i % 3 == 0 else float(len(r.tokens)) for i, r in enumerate(responses)
        ]
    },
}


def trained_rows(made, iterations):
    """The rows of each update, and the logged rows."""
    rows, optimize = [], made.optimize
    made.optimize = lambda batch, plan: (rows.append(batch), optimize(batch, plan))[1]
    return rows, fit(made, iterations)


@pytest.mark.parametrize("name", WHITENED)
class TestNormalisationOverTheBatch:
    @pytest.mark.parametrize("kept", FILTERS)
    def test_is_over_the_tokens_trained_on(self, name, kept):
        updates, logged = trained_rows(learner(**deepcopy(WHITENED[name] | FILTERS[kept])), 3)
        assert len(updates) == 3
        for batch in updates:
            valid = batch.advantages[batch.mask].double()
            assert float(valid.mean()) == pytest.approx(0, abs=1e-5)
            assert float(valid.var(unbiased=False)) == pytest.approx(1, abs=1e-4)
        if kept == "dynamic":
            assert max(row["train/stale_fraction"] for row in logged) > 0, (
                "rows that waited in the buffer are among them"
            )
        if kept == "overlong":
            assert not updates[0].mask.any(1).all()

    def test_replayed_rows_keep_the_advantages_that_they_had(self, name):
        made = learner(**deepcopy(WHITENED[name]), replay_fraction=0.5)
        (first, second), _ = trained_rows(made, 2)
        num_fresh = len(first)
        assert len(second) > num_fresh
        fresh = second.select(torch.arange(num_fresh))
        valid = fresh.advantages[fresh.mask].double()
        assert float(valid.mean()) == pytest.approx(0, abs=1e-5)
        rows = zip(first.group.tolist(), first.tokens, first.lengths, first.advantages, strict=True)
        known = {
            (group, *tokens[:n].tolist()): advantages[:n] for group, tokens, n, advantages in rows
        }
        for i in range(num_fresh, len(second)):
            n = int(second.lengths[i])
            torch.testing.assert_close(
                second.advantages[i, :n],
                known[int(second.group[i]), *second.tokens[i, :n].tolist()],
            )

    def test_the_call_is_the_composition(self, name):
        part, b = WHITENED[name]["advantage"], batches.batch(9, 8, seed=3)
        estimated = part.estimate(b.rewards, b.mask, b.group, b.values)
        credit = part(b.rewards, b.mask, b.group, b.values)
        assert torch.equal(credit.advantages, part.normalize(estimated.advantages, b.mask))
        assert not torch.equal(credit.advantages, estimated.advantages)


def test_rows_of_several_draws_are_normalised_once_and_together():
    """Without a KL and a baseline, G_t is the reward: rows that waited in the buffer have no scale
    of their own."""
    made = learner(
        advantage=ReinforcePP(),
        sampling=Dynamic(),
        batch=Batch(prompts=6, samples=3, minibatches=2),
    )
    updates, logged = trained_rows(made, 3)
    assert max(row["train/stale_fraction"] for row in logged) > 0
    for rows in updates:
        torch.testing.assert_close(
            rows.advantages, whiten(rewards_to_go(rows.rewards, rows.mask), rows.mask)
        )


class TestTokenCredit:
    """A ratio with one value per response averages the advantages of its tokens: credit by token
    would be lost without a word."""

    @pytest.mark.parametrize(
        ("ratio", "is_lost"),
        [
            (Clipped(1.0, 9.0, level="sequence"), True),
            (GeometricMean(9.0, 9.0), True),
            (Clipped(1.0, 9.0, level="sequence_token"), False),
        ],
    )
    def test_is_lost_with_one_ratio_per_response(self, ratio, is_lost):
        made, rows = off_policy(ratio=ratio)
        token = replace(rows, advantages=torch.where(rows.mask, torch.randn(rows.mask.shape), 0.0))
        means = (token.advantages.sum(1) / rows.mask.sum(1).clamp(min=1))[:, None]
        one = gradients(made, token)
        other = gradients(made, replace(rows, advantages=torch.where(rows.mask, means, 0.0)))
        distance = float((one - other).norm() / other.norm())
        assert distance < 1e-5 if is_lost else distance > 0.1

    @pytest.mark.parametrize("ratio", [Clipped(level="sequence"), GeometricMean()])
    def test_stops_where_it_would_be_lost(self, ratio):
        """Also for parts that declare nothing."""

        def by_token(rewards, mask, group, values=None):
            return Credit(torch.where(mask, torch.arange(mask.shape[1]), 0.0))

        with pytest.raises(
            UserError, match=r"would average advantages of function .*: type ratio=sequence_token"
        ):
            fit(learner(ratio=ratio, advantage=by_token), 1)
        assert fit(learner(ratio=ratio), 1)
        assert fit(learner(ratio=Clipped(level="sequence_token"), advantage=by_token), 1)


class TestRewardParts:
    def test_terms_and_weights_reach_the_estimator(self):
        """An even first token, and the number of tokens, which abstains on some responses."""

        def num_tokens(responses):
            return [None if i % 5 == 0 else float(len(r.tokens)) for i, r in enumerate(responses)]

        reward = WeightedSum(
            {
                "even": {"reward": even},
                "tokens": {"reward": num_tokens, "weight": 0.1},
                "gold": {"reward": even, "weight": 0},
            }
        )
        made = learner(advantage=GDPO(), reward=reward)
        batch = collected(made)
        responses = [tokens[mask] for tokens, mask in zip(batch.tokens, batch.mask, strict=True)]
        columns = [
            [float(x[0] % 2 == 0) for x in responses],
            [math.nan if i % 5 == 0 else float(len(x)) for i, x in enumerate(responses)],
        ]
        want = GDPO()(
            batch.rewards,
            batch.mask,
            batch.group,
            None,
            torch.tensor(columns).T,
            torch.tensor([1.0, 0.1]),
        ).advantages
        torch.testing.assert_close(batch.advantages, want)
        assert want.abs().max() > 0.1

    def test_a_reward_without_terms_is_one_term(self):
        batch = collected(learner(advantage=GDPO()))
        plain = GroupNorm()(batch.rewards, batch.mask, batch.group).advantages
        scale = (batch.advantages / plain)[plain != 0]
        torch.testing.assert_close(scale, scale[:1].expand_as(scale))

    def test_outcomes_are_apart_from_steps(self):
        def steps(responses):
            rewards = [[float(t % 3) for t in r.tokens] for r in responses]
            return Scores([sum(row) for row in rewards], tokens=rewards)

        reward = WeightedSum({"steps": {"reward": steps}, "even": {"reward": even, "weight": 50.0}})
        apart = collected(learner(advantage=Process(outcome_weight=2.0), reward=reward))
        merged = collected(learner(advantage=Process(), reward=reward))
        alone = collected(
            learner(advantage=Process(), reward=WeightedSum({"steps": {"reward": steps}}))
        )
        outcome = collected(learner(advantage=GroupNorm(), reward=even))
        torch.testing.assert_close(apart.advantages, alone.advantages + 2 * outcome.advantages)
        assert not torch.allclose(apart.advantages, merged.advantages, atol=0.1)


def test_the_reference_never_moves_and_is_not_saved():
    made = learner(kl=Penalty("k3", 0.04, "loss"))
    before = flat(made.reference.policy)
    rows = fit(made, 3)
    assert torch.equal(flat(made.reference.policy), before)
    assert not any(p.requires_grad for p in made.reference.policy.parameters())
    assert set(made.state_dict()) == {f"policy.{name}" for name in made.policy.state_dict()}
    assert made.checkpoint.state()["frozen"]["reference"].keys() == {"origin"}
    assert rows[0]["train/kl_ref"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["train/kl_ref"] > 1e-5


class TestDynamicSampling:
    def test_a_group_that_the_overlong_filter_emptied_is_not_kept(self):
        made = attached(
            learner(sampling=Dynamic(), overlong_filter=True, rollout=Local(max_tokens=1))
        )
        experience, keep = made.sample(SPLITS.train[:8])
        for group in experience.group[keep].unique():
            assert experience.mask[experience.group == group].any()
        assert keep.any()

    @pytest.mark.parametrize("fallback", ["train", "skip"])
    def test_hopeless_reward_ends(self, fallback):
        made = learner(
            sampling=Dynamic(), reward=lambda r: [1.0] * len(r), max_draws=3, fallback=fallback
        )
        before = flat(made.policy)
        rows = fit(made, 2)
        assert [row["train/draws"] for row in rows] == [3, 3]
        assert [row["train/flat_group_fraction"] for row in rows] == [1, 1]
        assert [row["train/short_of_groups"] for row in rows] == [1, 1]
        assert rows[-1]["optimizer_step"] == 0
        assert torch.equal(before, flat(made.policy))

    @pytest.mark.parametrize(("fallback", "steps"), [("train", 1), ("skip", 0)])
    def test_too_few_groups_are_trained_on_or_skipped(self, fallback, steps):
        made = learner(
            sampling=Dynamic(),
            reward=half_flat,
            max_draws=1,
            fallback=fallback,
            batch=Batch(prompts=4, samples=2),
        )
        [row] = fit(made, 1)
        assert row["train/short_of_groups"] == 1
        assert row["train/kept_fraction"] == 0.5
        assert row["optimizer_step"] == steps

    def test_skipped_iterations_do_not_fill_the_buffer(self):
        """Another rank has no groups, so that this one, which keeps all, skips every iteration."""
        made = learner(max_draws=2, fallback="skip", batch=Batch(prompts=4, samples=2))
        made.buffer.min_groups = lambda: 0
        rows = fit(made, 3)
        assert made.buffer.num_groups == 4
        assert [row["train/dropped_groups"] for row in rows] == [4, 8, 8]
        assert rows[-1]["optimizer_step"] == 0

    def test_rows_without_old_logprobs_stay_on_policy_in_the_first_minibatch(self):
        """Groups that waited through an iteration without a step: nothing to compare them with."""
        made = learner()
        seen = []
        made.train_step = lambda minibatch, *more: seen.append(minibatch.on_policy.tolist())
        made.iteration = 1
        prompt = Prompt(id="a", text="1+1=")
        response = Response(
            prompt, prompt_tokens=[1, 2], tokens=[3], behavior_logprobs=[-1.0], finish="stop"
        )
        rows = collate_unscored([response, response], pad_id=0, policy_version=0)
        rows = replace(rows, on_policy=torch.tensor([True, False]))
        made.optimize(rows, [torch.tensor([0, 1])])
        assert seen == [[True, False]]

    def test_hopeless_reward_can_stop_the_run(self):
        made = learner(
            sampling=Dynamic(), reward=lambda r: [1.0] * len(r), max_draws=2, fallback="error"
        )
        with pytest.raises(
            UserError,
            match=r"after 2 draws a rank has kept only 0 of its 4 groups.*algo\.max_draws",
        ):
            fit(made, 1)

    def test_filter_reads_correctness_not_the_shaped_reward(self):
        def shaped(responses):
            return Scores(
                [float(i) for i in range(len(responses))], correct=[True] * len(responses)
            )

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

    @pytest.mark.parametrize("surplus", ["keep", "drop"])
    def test_surplus_waits_or_is_dropped(self, surplus):
        made = learner(sampling=Dynamic(), batch=Batch(prompts=6, samples=2), surplus=surplus)
        rows = fit(made, 4)
        assert sum(row["train/surplus_groups"] for row in rows) > 0
        assert (sum(row["train/stale_fraction"] for row in rows) > 0) == (surplus == "keep")

    def test_surplus_is_weighed_against_the_policy_that_sampled_it(self):
        made = learner(sampling=Dynamic(), batch=Batch(prompts=6, samples=2))
        start = policy()
        fit(made, 1)
        waiting = made.buffer.kept
        assert len(waiting)
        want = start(waiting.tokens, waiting.mask).logprobs
        torch.testing.assert_close(
            waiting.old_logprobs[waiting.mask], want[waiting.mask], rtol=0, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "grpo",
        "dapo",
        "dr_grpo",
        "gspo",
        "rloo",
        "soft",
        "cispo",
        "gmpo",
        "reinforce",
        "reinforce_pp",
        "remax",
        "accept",
    ],
)
def test_learning_raises_the_reward(name):
    rows = fit(
        learner(batch=Batch(prompts=8, samples=8, minibatches=2), **deepcopy(LOSSES[name])), 15
    )
    assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.15


def test_first_and_later_validations_use_one_precision():
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
    torch.testing.assert_close(
        rows.old_logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4
    )


def test_log_probabilities_of_other_tokens_are_in_no_divergence() -> None:
    """`scored_tokens` of an extension has them computed: exp(200) of k3 would make the gradient
    NaN."""
    made = attached(learner(kl=Penalty("k3", 0.1, "loss")))
    micro = made.scorer.add_ref_logprobs(collected(made), made.reference.policy)
    output = made.forward_policy(micro)
    logprobs = torch.where(micro.mask, output.logprobs.detach(), -200.0).requires_grad_()
    made.forward_policy = lambda rows: output._replace(logprobs=logprobs)
    made.loss(micro, Totals(micro.mask.sum(), micro.mask.any(1).sum())).backward()
    assert (logprobs.grad[~micro.mask] == 0).all()
    assert logprobs.grad[micro.mask].isfinite().all()
