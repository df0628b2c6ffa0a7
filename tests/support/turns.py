"""Random turns and states for a batch of tensors."""

import torch
from torch import Tensor

from tests.support.batches import Batch


def turns_of(b: Batch, seed: int, num_states: int = 3) -> tuple[Tensor, Tensor]:
    """Return turns that increase along each row, -1 on the first and the last slot, and a state for
    each turn, 0 for the first."""
    generator = torch.Generator().manual_seed(seed)
    begins = torch.rand(b.mask.shape, generator=generator) < 0.4
    turn = begins.long().cumsum(1)
    turn = turn - turn[:, :1]
    states = torch.randint(0, num_states, (len(turn), turn.shape[1] + 1), generator=generator)
    states[:, 0] = 0
    return turn, states.gather(1, turn)
