import torch

from rlmods.kl import NoKL


def test_is_0_and_needs_no_reference() -> None:
    part = NoKL()
    assert not part.needs.reference
    assert part.coefficient == 0
    assert part.where == "loss"
    assert torch.equal(part(torch.full((2, 3), torch.nan), torch.zeros(2, 3)), torch.zeros(2, 3))
