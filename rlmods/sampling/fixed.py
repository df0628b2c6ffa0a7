"""Training on every response."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Fixed:
    """Keep every response: the number of prompts per iteration is fixed."""

    def __call__(self, scores: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
        return torch.ones_like(scores, dtype=torch.bool)
