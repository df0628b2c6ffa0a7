"""Training on every response."""

from dataclasses import dataclass

import torch

from rlmods.types import RowFloats, RowInts, RowMask


@dataclass(frozen=True)
class Fixed:
    """Keep every response: the number of prompts per iteration is fixed."""

    def __call__(self, scores: RowFloats, group: RowInts) -> RowMask:
        return torch.ones_like(scores, dtype=torch.bool)
