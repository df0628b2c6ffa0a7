"""An advantage of your own: `python train.py advantage=name`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlmods.types import Credit


@dataclass(frozen=True)
class Name:
    """(R - best of the group) * scale, the same on every token of a response."""

    scale: float = 1.0
    """Factor on every advantage."""

    needs_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, mask: Tensor, group: Tensor, values: Tensor | None = None) -> Credit:
        """
        Args:
            rewards: [N, T], 0 but where a response is paid.
            mask: [N, T], True on the tokens of the response.
            group: [N], equal for the responses to one prompt.
            values: [N, T] of the critic, None without one.
        """
        total = torch.where(mask, rewards, 0.0).sum(1)
        same = group[:, None] == group[None, :]
        best = torch.where(same, total[None, :], -torch.inf).amax(1)
        return Credit(torch.where(mask, self.scale * (total - best)[:, None], 0.0))
