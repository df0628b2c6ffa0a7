import torch

from rlmods.correction import NoCorrection
from tests.support.batches import batch


def test_has_no_weights() -> None:
    b = batch(4, 5, seed=1)
    assert NoCorrection()(b.values, b.values - b.log_ratio, torch.ones_like(b.mask)) is None
