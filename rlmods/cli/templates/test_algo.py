"""Run with `make test ARGS=plugins/name`."""

import pytest
import torch

from rlmods.cli.templates.algo import Settings, log_likelihood_of_good


def test_only_tokens_with_a_positive_advantage_count() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    good = log_likelihood_of_good(logprobs, torch.tensor([[0.5, -0.5, float("nan")]]))
    assert good.tolist() == [[-1.0, 0.0, 0.0]]
    (gradient,) = torch.autograd.grad(good.sum(), logprobs)
    assert gradient.tolist() == [[1.0, 0.0, 0.0]]


def test_the_weight_has_a_bound() -> None:
    with pytest.raises(ValueError, match="imitation"):
        Settings(imitation=-1.0)
