"""A model in this process as the teacher."""

from functools import partial

import pytest
import torch

from rlmods.errors import UserError
from rlmods.teacher import Local
from tests.support.tiny_setup import other_vocabulary, policy


def test_is_frozen() -> None:
    loaded = Local(policy=partial(policy, seed=3))(policy())
    assert not any(x.requires_grad for x in loaded.parameters())
    assert not loaded.training
    torch.testing.assert_close(next(loaded.parameters()), next(policy(3).parameters()).detach())


def test_needs_a_model() -> None:
    with pytest.raises(UserError, match=r"^teacher=local needs a model: type teacher\.name="):
        Local()


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"^teacher: the model has another vocabulary .* type another teacher\.name=$",
    ):
        Local(policy=other_vocabulary)(policy())
