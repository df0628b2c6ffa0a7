"""A step that is not finite is left out, and nothing of it stays."""

import copy
import math
from typing import Any

import pytest
import torch

from rlmods.advantage import GAE
from rlmods.algo import DPO, PPO, Batch
from rlmods.critic import Separate
from rlmods.kl import Adaptive
from rlmods.preference import Sigmoid
from rlmods.types import UserError
from tests.support.tiny_setup import fit, learner


def poisoned(made: Any, *steps: int, what: float = math.nan, gradient_only: bool = False) -> Any:
    """Losses of the optimizer steps at these positions are `what`, or their gradients NaN."""
    loss, train_step, position = made.loss, made.train_step, [-1]

    def counted(*args: Any) -> None:
        position[0] += 1
        train_step(*args)

    def wrong(micro: Any, totals: Any) -> torch.Tensor:
        found = loss(micro, totals)
        if position[0] not in steps:
            return found
        if not gradient_only:
            return found * what
        found.register_hook(lambda gradient: gradient * math.nan)
        return found + 0.0

    made.loss, made.train_step = wrong, counted
    return made


BATCH = Batch(prompts=4, samples=4, epochs=2, minibatches=2)
"""Four optimizer steps an iteration."""


@pytest.mark.parametrize("how", [{}, {"what": math.inf}, {"gradient_only": True}], ids=["NaN", "infinite", "gradient"])
class TestOneStep:
    def test_leaves_weights_and_optimizer_as_they_were(self, how: dict[str, Any]) -> None:
        """All steps of the iteration are poisoned: it is as if there had been none."""
        made = poisoned(learner(batch=BATCH), 0, 1, **how)
        made.batch = Batch(prompts=4, samples=4, epochs=1, minibatches=2)
        before = copy.deepcopy(made.policy.state_dict())
        [row] = fit(made, 1)
        assert row["train/nonfinite_steps"] == 2
        assert "train/grad_norm" not in row
        assert made.optimizer_steps == 0
        assert all(torch.equal(before[name], weight) for name, weight in made.policy.state_dict().items())
        assert not made.optimizers().state
        assert all(p.grad is None or not p.grad.any() for p in made.policy.parameters())

    def test_the_others_count(self, how: dict[str, Any]) -> None:
        made = poisoned(learner(batch=BATCH), 1, **how)
        rows = fit(made, 2)
        assert [row["train/nonfinite_steps"] for row in rows] == [1, 0]
        assert [row["optimizer_step"] for row in rows] == [3, 7]
        assert math.isfinite(rows[0]["train/grad_norm"])
        assert all(weight.isfinite().all() for weight in made.policy.state_dict().values())


def test_in_a_row_is_what_counts() -> None:
    made = poisoned(learner(batch=BATCH), 0, 1, 3, 4, 6, 7)
    assert [row["train/nonfinite_steps"] for row in fit(made, 2)] == [3, 3]


def test_too_many_end_the_run() -> None:
    made = poisoned(learner(batch=Batch(prompts=4, samples=4, epochs=2, minibatches=2, max_nonfinite=2)), 2, 4, 5)
    with pytest.raises(
        UserError, match=r"^2 optimizer steps in a row were not finite: iteration 2 ends the run, try a smaller optimizer.lr"
    ):
        fit(made, 9)
    assert (made.iteration, made.optimizer_steps) == (1, 3)


def test_a_critic_counts_too() -> None:
    made = learner(PPO, advantage=GAE(), critic=Separate(), batch=BATCH)
    for p in made.critic.parameters():
        p.register_hook(lambda gradient: gradient * math.nan)
        break
    with pytest.raises(UserError, match="3 optimizer steps in a row"):
        fit(made, 9)


def test_offline_too() -> None:
    made = poisoned(learner(DPO, preference=Sigmoid(), batch=Batch(prompts=4)), 1)
    assert [row["train/nonfinite_steps"] for row in fit(made, 3)] == [0, 1, 0]


def test_a_coefficient_is_not_steered_by_nan() -> None:
    """It would be NaN from then on, and every loss with it."""
    made = learner(PPO, advantage=GAE(), critic=Separate(), kl=Adaptive("k1", 0.05, "reward", target=0.01, horizon=20.0))
    score, calls = made.scorer.add_ref_logprobs, []

    def once(experience: Any, reference: Any) -> Any:
        found = score(experience, reference)
        calls.append(1)
        if len(calls) == 2:
            found.ref_logprobs.mul_(math.nan)
        return found

    made.scorer.add_ref_logprobs = once
    rows = fit(made, 4)
    assert math.isnan(rows[1]["train/kl_ref"])
    assert [row["train/nonfinite_steps"] for row in rows] == [0, 1, 0, 0]
    assert math.isfinite(made.kl.coefficient)
