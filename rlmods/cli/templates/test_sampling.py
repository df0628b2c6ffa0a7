"""Run with `make test ARGS=plugins/name`."""

import torch

from rlmods.cli.templates.sampling import Name


def test_responses_below_the_threshold_are_left_out() -> None:
    kept = Name(threshold=0.5)(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1, 1, 2]))
    assert kept.tolist() == [False, True, True]
