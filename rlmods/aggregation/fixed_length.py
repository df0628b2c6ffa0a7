"""Every token weighs the same, whatever the other responses' lengths."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import masked_sum
from rlmods.types import Totals


@dataclass(frozen=True)
class FixedLength:
    """sum(x) / (responses of the optimizer step * length), length a constant. Dr. GRPO, arXiv:2503.20783, section 3.2.

    A constant, and not the width of the batch: padding must not change the loss."""

    length: int
    """Tokens; usually the most that are sampled."""

    def __post_init__(self) -> None:
        if not self.length >= 1:
            raise ValueError(f"FixedLength: length must be at least 1, got {self.length}")

    def __call__(self, x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], totals: Totals) -> Float[Tensor, ""]:
        return masked_sum(x, mask).sum() / (totals.sequences * self.length)
