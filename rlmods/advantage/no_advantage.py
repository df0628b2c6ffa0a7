"""No advantage from rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.types import Credit


@dataclass(frozen=True)
class NoAdvantage:
    """A_t = 0: rewards are logged, and the policy learns from other signals alone, as in distillation. A KL in the reward is subtracted per
    token afterwards."""

    ignores_rewards: ClassVar[bool] = True
    """True if rewards have no effect on the advantages."""
    normalizes_rewards: ClassVar[bool] = True

    def __call__(
        self, rewards: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], group: Int[Tensor, " N"], values: Float[Tensor, "N T"] | None = None
    ) -> Credit:
        return Credit(torch.zeros_like(rewards))
