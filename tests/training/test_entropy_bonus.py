"""The weight of the entropy bonus follows the distance from its target."""

from __future__ import annotations

import pytest

from rlmods.algo import Batch
from rlmods.training.entropy_bonus import EntropyBonus
from tests.support.tiny_setup import fit, learner


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


def test_without_a_target_the_coefficient_is_fixed() -> None:
    made = learner(entropy_coefficient=0.1)
    fit(made, 1)
    assert made.entropy_bonus.coefficient == 0.1


@pytest.mark.slow
def test_keeps_the_entropy_up() -> None:
    entropy = {}
    for target in (None, 3.0):
        batch = Batch(prompts=8, samples=8, minibatches=2)
        made = learner(target_entropy=target, entropy_rate=0.2, batch=batch)
        entropy[target] = fit(made, 25)[-1]["train/entropy"]
    assert entropy[3.0] > entropy[None] + 0.1
