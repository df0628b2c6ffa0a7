"""Iterations in which only the critic is trained."""

from dataclasses import replace
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from rlmods.advantage import GAE, GroupMean, NStep, Sum
from rlmods.algo import PPO, Batch
from rlmods.critic import Separate, Shared
from rlmods.data import Splits
from rlmods.kl import Adaptive
from rlmods.ratio import KLPenalty
from rlmods.schedule import Schedule
from rlmods.training.credit import CreditAssignment
from rlmods.types import Experience, Response, Scores
from tests.support.batches import Batch as Drawn, batch
from tests.support.reference import dense, to_go
from tests.support.tiny_setup import SPLITS, fit, learner
from tests.training.test_credit import rows

CRITICS = {"separate": Separate, "shared": Shared}
STEPS = Batch(prompts=4, samples=4, minibatches=2)


def ppo(critic: str = "separate", pretraining: int = 3, **change: Any) -> Any:
    part = CRITICS[critic](pretraining=pretraining)
    parts = {"advantage": GAE(gamma=0.9, lam=0.5), "batch": STEPS, **change}
    return learner(PPO, critic=part, **parts)


class Weights(L.Callback):
    """Weights of both networks before each iteration and at the end, and their learning rates in
    it."""

    def __init__(self) -> None:
        self.policy: list[Tensor] = []
        self.critic: list[Tensor] = []
        self.rates: list[tuple[float, float]] = []

    def on_train_batch_start(self, trainer: L.Trainer, made: Any, *args: Any) -> None:
        self.on_train_end(trainer, made)
        groups = made.optimizers().param_groups
        self.rates.append((groups[0]["lr"], groups[-1]["lr"]))

    def on_train_end(self, trainer: L.Trainer, made: Any) -> None:
        self.policy.append(flat(made.policy))
        self.critic.append(flat(made.critic))


def flat(network: Any) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in network.parameters()])


@pytest.mark.parametrize("critic", CRITICS)
def test_the_policy_is_unchanged_to_the_last_bit(critic: str) -> None:
    """Its weight decay, moments, and every loss on it and number that follows it wait."""
    kl = Adaptive("k1", 0.05, "reward", target=0.01, horizon=20.0)
    ratio = KLPenalty(coefficient=0.5, target=1e-3)
    made = ppo(
        critic,
        optimizer=partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.5),
        kl=kl,
        ratio=ratio,
        target_entropy=9.0,
        positive_coefficient=0.1,
        replay_fraction=0.5,
        ptx_coefficient=0.5,
        ptx_prompts=list(SPLITS.train),
    )
    seen: list[tuple[float, ...]] = []
    adapt = made.adapt

    def spy(metrics: Any) -> None:
        adapt(metrics)
        seen.append((kl.coefficient, ratio.coefficient, made.entropy_bonus.coefficient))

    made.adapt = spy
    weights = Weights()
    logged = fit(made, 5, callbacks=(weights,))
    for i in range(3):
        assert torch.equal(weights.policy[i + 1], weights.policy[0])
        assert not torch.equal(weights.critic[i + 1], weights.critic[i])
        assert seen[i] == (0.05, 0.5, 0.0)
        assert logged[i]["train/critic_grad_norm"] > 0
        assert logged[i]["train/kl_old"] == 0
    assert not torch.equal(weights.policy[4], weights.policy[3])
    assert all(a != b for a, b in zip(seen[3], seen[2], strict=True))
    state = made.optimizers().state
    steps = [{int(state[p]["step"]) for p in x.parameters()} for x in (made.policy, made.critic)]
    assert steps == [{4}, {10}]


def test_the_next_iteration_is_on_policy() -> None:
    logged = fit(ppo(pretraining=2, batch=Batch(prompts=8, samples=4)), 3)
    assert [row["train/ratio_max"] for row in logged] == [1.0] * 3
    assert [row["train/clip_fraction/low"] for row in logged] == [0.0] * 3
    assert logged[2]["train/grad_norm"] > 0


def test_the_schedule_of_the_policy_begins_afterwards() -> None:
    schedule = Schedule(warmup=2, decay="cosine")
    after, alone = Weights(), Weights()
    fit(ppo(pretraining=2, schedule=schedule), 6, callbacks=(after,))
    fit(ppo(pretraining=0, schedule=schedule), 4, callbacks=(alone,))
    rates = [policy for policy, _ in after.rates]
    assert rates[2:] == [policy for policy, _ in alone.rates]
    assert rates[:2] == [1e-2 * schedule(0, 4)] * 2
    assert [critic for _, critic in after.rates] == [1e-2 * schedule(i, 6) for i in range(6)]


def test_the_critic_learns_what_the_prompt_decides() -> None:
    def by_prompt(responses: list[Response]) -> Scores:
        return Scores([float(ord(str(r.prompt.text)[0]) % 2) for r in responses])

    made = learner(
        PPO,
        advantage=GAE(),
        critic=Separate(pretraining=4, clip=None),
        reward=by_prompt,
        batch=Batch(prompts=8, samples=4, epochs=2, minibatches=2),
    )
    logged = fit(made, 4, splits=Splits(SPLITS.train[:8], []))
    assert logged[0]["train/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert logged[3]["train/explained_variance"] > 0.9
    assert logged[3]["train/value_loss"] < 0.1 * logged[0]["train/value_loss"]


def test_the_returns_are_of_lambda_1_until_then() -> None:
    made = ppo(pretraining=1)
    found: list[Experience] = []
    step = made.train_step

    def spy(minibatch: Experience, *more: Any) -> None:
        found.append(minibatch)
        step(minibatch, *more)

    made.train_step = spy
    fit(made, 2)
    first, *_, last = found
    assert first.returns is not None
    assert last.returns is not None
    torch.testing.assert_close(first.returns, monte_carlo(first), check_dtype=False)
    assert (last.returns - monte_carlo(last)).abs().max() > 1e-3


def monte_carlo(batch: Experience) -> Tensor:
    """Discounted rewards from each sampled token on."""
    return dense(to_go(batch.rewards.double(), batch.mask, 0.9), batch.mask.shape)


ESTIMATORS = {
    "gae": GAE(gamma=0.9, lam=0.5, critic_lam=0.3, whiten=True),
    "n_step": NStep(n=2, gamma=0.9),
    "sum": Sum({"critic": {"estimator": GAE(0.9, 0.5)}, "group": {"estimator": GroupMean()}}),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_returns_of_every_estimator(name: str) -> None:
    """Whatever the critic says, with the penalty, and the advantages as they are."""
    drawn: Drawn = batch(9, 6, seed=3)
    penalty = torch.where(drawn.mask, drawn.log_ratio.abs(), 0.0)
    scores = Scores([1.0] * 9)
    credit = CreditAssignment(ESTIMATORS[name])
    given = rows(drawn.poisoned(), values=drawn.values)
    plain = credit.estimate(given, scores, penalty)
    found = credit.estimate(given, scores, penalty, monte_carlo=True)
    share = 0.5 if name == "sum" else 1.0
    rewards = replace(rows(drawn), rewards=drawn.rewards - share * penalty)
    assert found.returns is not None
    assert plain.returns is not None
    torch.testing.assert_close(found.returns, monte_carlo(rewards), check_dtype=False)
    assert (plain.returns - found.returns).abs().max() > 1e-3
    assert torch.equal(found.advantages, plain.advantages)
