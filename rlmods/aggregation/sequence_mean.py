"""Every response weighs the same."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import masked_mean
from rlmods.types import Totals


@dataclass(frozen=True)
class SequenceMean:
    """sum_i mean_t(x_it) / responses of the optimizer step: a token of a long response weighs less. GRPO, arXiv:2402.03300, equation 3."""

    def __call__(self, x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], totals: Totals) -> Float[Tensor, ""]:
        return masked_mean(x, mask).sum() / totals.sequences
