"""Custom advantage estimator: `python train.py advantage=name`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlmods.needs import AdvantageNeeds
from rlmods.types import Credit


@dataclass(frozen=True)
class Name:
    """Advantage (R - best R of the group) * scale, the same on every token of a response."""

    scale: float = 1.0
    """Factor of every advantage."""

    needs: ClassVar[AdvantageNeeds] = AdvantageNeeds(group=True)

    def __call__(
        self, rewards: Tensor, mask: Tensor, group: Tensor, values: Tensor | None = None
    ) -> Credit:
        """
        Args:
            rewards: [N, T], per-token rewards, 0 on tokens without one.
            mask: [N, T], True on response tokens.
            group: [N], group index, equal for the responses to one prompt.
            values: [N, T], the critic's values, None without a critic.
        """
        returns = torch.where(mask, rewards, 0.0).sum(1)
        same_group = group[:, None] == group[None, :]
        best = torch.where(same_group, returns[None, :], -torch.inf).amax(1)
        return Credit(torch.where(mask, self.scale * (returns - best)[:, None], 0.0))
