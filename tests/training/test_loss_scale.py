"""`trainer.precision=16-mixed`: losses are scaled, gradients are not, and an overflow costs one
step."""

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from rlmods.algo import SFT, Batch
from rlmods.callbacks import IterationCheckpoint
from rlmods.distributed import trainer as trainers
from rlmods.distributed.loss_scale import ScaledFloat16
from rlmods.errors import UserError
from tests.support import ranks
from tests.support.kill_resume import differing
from tests.support.overflow_ranks import Begins
from tests.support.tiny_setup import fit, flat, learner, untimed
from tests.training.test_train_step import poisoned

HUGE = 2.0**60
STEPS = Batch(prompts=4, samples=4, epochs=2, minibatches=2)
"""Four optimizer steps an iteration."""


def scaled(made: Any, iterations: int, *callbacks: L.Callback, **options: Any) -> Any:
    return fit(made, iterations, callbacks=callbacks, precision="16-mixed", **options)


def moved(precision: str, max_norm: float = math.inf) -> tuple[torch.Tensor, dict[str, Any]]:
    """The sum of two gradients on the rows of the data, by plain gradient descent, and metrics."""
    made = learner(
        SFT,
        batch=Batch(prompts=4, minibatches=2, max_norm=max_norm),
        optimizer=partial(torch.optim.SGD, lr=1e-3),
    )
    before = flat(made.policy)
    [row] = fit(made, 1, precision=precision)
    return (flat(made.policy) - before) / 1e-3, row


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


class TestGradients:
    def test_are_those_of_float32(self) -> None:
        """Closer than bfloat16, which has three bits less."""
        exact, _ = moved("32-true")
        half, row = moved("16-mixed")
        coarse, _ = moved("bf16-mixed")
        assert row["train/loss_scale"] == 2**16
        assert row["train/overflow_steps"] == 0
        assert 0 < distance(half, exact) < 3e-3
        assert distance(half, exact) < distance(coarse, exact) / 3

    def test_are_unscaled_before_they_are_clipped_and_measured(self) -> None:
        _, exact = moved("32-true")
        norm = exact["train/grad_norm"]
        clipped, row = moved("16-mixed", max_norm=norm / 10)
        assert row["train/grad_norm"] == pytest.approx(norm, rel=1e-2)
        # of two steps in about the same direction
        assert float(clipped.norm()) == pytest.approx(2 * norm / 10, rel=0.3)

    def test_a_policy_samples_as_it_trains(self) -> None:
        rows = scaled(learner(batch=STEPS), 2)
        assert [row["optimizer_step"] for row in rows] == [4, 8]
        assert all(0 < row["train/sampler_logprob_gap"] < 0.01 for row in rows)


class TestOverflow:
    def test_leaves_weights_and_optimizer_and_halves_the_scale(self) -> None:
        made = learner(batch=STEPS)
        before = copy.deepcopy(made.policy.state_dict())
        [row] = scaled(made, 1, Begins(HUGE))
        assert (row["train/overflow_steps"], row["train/nonfinite_steps"]) == (4, 0)
        assert row["train/loss_scale"] == HUGE * (1 + 1 / 2 + 1 / 4 + 1 / 8) / 4
        assert made.trainer.precision_plugin.scale == HUGE / 16
        assert "train/grad_norm" not in row
        assert made.optimizer_steps == 0
        assert not differing(before, made.policy.state_dict())
        assert not made.optimizers().state

    @pytest.mark.slow
    def test_ends_no_run_while_the_scale_can_fall(self) -> None:
        made = learner(batch=STEPS)
        rows = scaled(made, 20, Begins(HUGE))
        assert sum(row["train/nonfinite_steps"] for row in rows) == 0
        num_overflows = sum(row["train/overflow_steps"] for row in rows)
        assert num_overflows > 3
        assert made.optimizer_steps == 80 - num_overflows
        assert made.trainer.precision_plugin.scale == HUGE / 2**num_overflows

    def test_that_no_scale_prevents_ends_the_run(self) -> None:
        made = poisoned(learner(batch=STEPS), *range(99), gradient_only=True)
        with pytest.raises(UserError, match=r"^3 .* in a row .* try trainer\.precision=32-true, a"):
            scaled(made, 9, Begins(4.0))
        assert made.iteration == 1  # two overflows, and three steps that count
        assert made.trainer.precision_plugin.scale == 1

    def test_is_not_a_loss_that_is_not_finite(self) -> None:
        made = poisoned(learner(batch=STEPS), 1)
        [row] = scaled(made, 1)
        assert (row["train/overflow_steps"], row["train/nonfinite_steps"]) == (0, 1)
        assert made.trainer.precision_plugin.scale == row["train/loss_scale"] == 2**16
        assert made.optimizer_steps == 3

    def test_between_two_losses_that_are_not_finite_does_not_separate_them(self) -> None:
        made = learner(batch=Batch(prompts=4, samples=4, minibatches=4, max_nonfinite=2))
        poisoned(poisoned(made, 0, 2), 1, gradient_only=True)
        with pytest.raises(UserError, match="2 optimizer steps in a row"):
            scaled(made, 1)


def test_growth_after_steps_without_overflow() -> None:
    made = learner(batch=STEPS)
    [row] = scaled(made, 1, Begins(2.0**10, growth_interval=2))
    assert row["train/loss_scale"] == (2**10 + 2**10 + 2**11 + 2**11) / 4
    assert made.trainer.precision_plugin.scale == 2**12


@pytest.mark.slow
def test_going_on_is_never_having_stopped(tmp_path: Path) -> None:
    """The scale grows every third step, so that five steps stop between two growths."""
    begins = Begins(2.0**10, growth_interval=3)
    batch = Batch(prompts=5, samples=4, minibatches=5)
    straight = learner(batch=batch)
    rows = scaled(straight, 4, begins)
    before = scaled(learner(batch=batch), 2, begins, IterationCheckpoint(tmp_path, every=0))
    resumed = learner(batch=batch)
    path = tmp_path / "iteration_000002.ckpt"
    assert torch.load(path, weights_only=True)["ScaledFloat16"]["scale"] == 2.0**13
    after = scaled(resumed, 4, resume=path)
    assert untimed(before) + untimed(after) == untimed(rows)
    assert not differing(dict(resumed.state_dict()), dict(straight.state_dict()))
    scalers = [made.trainer.precision_plugin.scaler for made in (straight, resumed)]
    assert not differing(*(scaler.state_dict() for scaler in scalers))


@pytest.mark.parametrize("name", ["16-mixed", "16", 16])
def test_names(name: Any) -> None:
    """Lightning would compute in bfloat16 on the CPU, and unscale what is unscaled on a GPU."""
    trainer = trainers.build(max_iterations=1, accelerator="cpu", precision=name)
    assert trainer.precision == "16-mixed"
    assert type(trainer.precision_plugin) is ScaledFloat16


@pytest.mark.slow
def test_two_ranks_decide_alike() -> None:
    ranks.run("tests.support.overflow_ranks", [], timeout_s=240)


def test_a_step_on_scaled_gradients_is_refused() -> None:
    """Of a plugin that calls the optimizer itself."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(UserError, match=r"type trainer\.precision=32-true$"):
        ScaledFloat16("cpu").optimizer_step(optimizer, torch.nn.Module(), lambda: None)
