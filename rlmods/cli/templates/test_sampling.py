"""Run with `make test ARGS=plugins/name`."""

import torch

from rlmods.cli.templates.sampling import Name


def test_keeps_responses_that_are_not_solved() -> None:
    scores = torch.tensor([0.0, 0.5, 1.0, float("nan")])
    assert Name(max_score=0.5)(scores, torch.zeros(4, dtype=torch.long)).tolist() == [
        True,
        True,
        False,
        True,
    ]
