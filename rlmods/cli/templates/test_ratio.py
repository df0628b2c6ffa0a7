"""Run with `make test ARGS=plugins/name`."""

import torch

from rlmods.cli.templates.ratio import Name


def test_ratio_is_capped() -> None:
    log_ratio, mask = torch.tensor([[0.0, 3.0]], requires_grad=True), torch.tensor([[True, True]])
    surrogate = Name(ceiling=2.0)(log_ratio, torch.tensor([[1.0, -1.0]]), mask)
    assert surrogate.objective.tolist() == [[1.0, -2.0]]
    assert surrogate.clipped.tolist() == [[False, True]]
    (gradient,) = torch.autograd.grad(surrogate.objective.sum(), log_ratio)
    assert gradient.tolist() == [[1.0, 0.0]]
