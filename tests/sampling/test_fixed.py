import torch

from rlmods.sampling import Fixed


def test_keeps_every_response() -> None:
    keep = Fixed()(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 0, 1]))
    assert keep.dtype == torch.bool
    assert keep.all()
