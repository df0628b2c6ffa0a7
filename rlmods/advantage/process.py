"""The advantage of GRPO with process supervision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.advantage.group_norm import GroupNorm
from rlmods.ops import rewards_to_go
from rlmods.types import Credit


@dataclass(frozen=True)
class Process:
    """A_t = sum of (r_s - mean) / (std + eps) over the steps that end at t or later, mean and std over all steps of the prompt's responses.

    DeepSeekMath (GRPO), arXiv:2402.03300, section 4.1.3. Only rewards on the last token of a step count: a KL penalty on every token has
    to be a loss. Equal step rewards give exactly 0, and so does a response without a step, or what follows its last one."""

    eps: float = 1e-6
    """Added to the standard deviation; above 0."""
    unbiased: bool = True
    """Divide the squared deviations by the number of steps - 1 instead of it."""

    needs_group: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ValueError(f"Process: eps must be above 0, got {self.eps}")

    def __call__(
        self,
        rewards: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        group: Int[Tensor, " N"],
        values: Float[Tensor, "N T"] | None = None,
        steps: Bool[Tensor, "N T"] | None = None,
    ) -> Credit:
        if steps is None:
            raise ValueError("Process: steps are missing; it needs a reward by step")
        ends = mask & steps
        # Each step is normalised as if it were a response of one token.
        scores, owner = rewards[ends][:, None], group[:, None].expand_as(mask)[ends]
        normalised = torch.zeros_like(rewards)
        normalised[ends] = GroupNorm(self.eps, self.unbiased)(scores, torch.ones_like(scores, dtype=torch.bool), owner).advantages[:, 0]
        return Credit(rewards_to_go(normalised, mask))
