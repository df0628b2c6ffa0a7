"""The policy itself as the teacher."""

import pytest
import torch

from rlmods.adapter import LoRA
from rlmods.errors import UserError
from rlmods.teacher import SelfTeacher
from rlmods.training.frozen import Teacher
from tests.support.tiny_setup import policy


def test_start_is_a_frozen_copy_and_current_is_the_policy() -> None:
    student = policy()
    start, current = (
        Teacher(SelfTeacher(demonstration="answer", weights=weights), student)
        for weights in ("start", "current")
    )
    with torch.no_grad():
        next(student.parameters()).add_(1.0)
    assert current.network is student
    assert current.frozen == {}
    assert start.network is not student
    torch.testing.assert_close(
        next(start.network.parameters()), next(policy().parameters()).detach()
    )
    assert list(start.frozen) == ["teacher"]


def test_under_an_adapter_start_is_a_second_adapter() -> None:
    student = LoRA(rank=4)(policy())
    start = Teacher(SelfTeacher(demonstration="answer"), student)
    assert start.network.model is student.model
    assert start.model.networks == []


def test_without_a_demonstration_there_is_nothing_to_learn() -> None:
    with pytest.raises(UserError, match=r"teacher\.demonstration=COLUMN$"):
        SelfTeacher()
