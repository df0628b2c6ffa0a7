"""The weight of the entropy bonus follows the distance from its target."""

from __future__ import annotations

from typing import Any

import pytest

from rlmods.training.extensions import EntropyControl
from tests.support.tiny_setup import extension, learner


def controlled(**settings: Any) -> tuple[Any, EntropyControl]:
    made = learner(target_entropy=2.0, entropy_rate=0.1, **settings)
    return made, extension(made, EntropyControl)


def test_the_weight_rises_below_the_target_and_falls_above_it() -> None:
    made, control = controlled(entropy_coefficient=0.5)
    control.on_iteration_end({"train/entropy": 1.5})
    assert made.entropy_coefficient == pytest.approx(0.55)
    control.on_iteration_end({"train/entropy": 3.0})
    assert made.entropy_coefficient == pytest.approx(0.45)
    control.on_iteration_end({})
    assert made.entropy_coefficient == pytest.approx(0.45)


def test_the_weight_is_never_negative() -> None:
    made, control = controlled()
    control.on_iteration_end({"train/entropy": 9.0})
    assert made.entropy_coefficient == 0.0


def test_the_weight_is_part_of_the_checkpoint() -> None:
    _, control = controlled(entropy_coefficient=0.5)
    control.on_iteration_end({"train/entropy": 1.0})
    other, restored = controlled()
    restored.load_state_dict(control.state_dict())
    assert other.entropy_coefficient == pytest.approx(0.6)
