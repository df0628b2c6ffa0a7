"""`python -m pytest plugins/name`."""

import torch

from rlmods.cli.templates.ratio import Name


def test_is_capped() -> None:
    log_ratio, mask = torch.tensor([[0.0, 3.0]], requires_grad=True), torch.tensor([[True, True]])
    found = Name(ceiling=2.0)(log_ratio, torch.tensor([[1.0, -1.0]]), mask)
    assert found.objective.tolist() == [[1.0, -2.0]]
    assert found.clipped.tolist() == [[False, True]]
    (gradient,) = torch.autograd.grad(found.objective.sum(), log_ratio)
    assert gradient.tolist() == [[1.0, 0.0]]
