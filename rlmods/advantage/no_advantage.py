"""No advantage from rewards."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class NoAdvantage:
    """A_t = 0: rewards are logged, and the policy learns from other signals alone, as in
    distillation. A KL in the reward is subtracted per token afterwards."""

    needs: ClassVar[AdvantageNeeds] = AdvantageNeeds(ignores_rewards=True, normalizes_rewards=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        return Credit(torch.zeros_like(rewards))
