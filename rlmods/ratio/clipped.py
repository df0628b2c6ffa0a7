"""Hard clipping: PPO, DAPO's clip-higher, dual clip, GSPO and GSPO-token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import importance, masked_mean
from rlmods.types import Surrogate

Level = Literal["token", "sequence", "sequence_token"]


@dataclass(frozen=True)
class Clipped:
    """min(r A, clip(r, 1 - low, 1 + high) A): no reward for moving pi further than the bounds in the direction that A asks for.

    low == high is PPO, arXiv:1707.06347, equation 7; low < high DAPO, arXiv:2503.14476, equation 10. `level` says what r is."""

    low: float = 0.2
    """The lower bound is 1 - low; 0 to 1."""
    high: float = 0.2
    """The upper bound is 1 + high."""
    level: Level = "token"
    """token: each token's own ratio. sequence: the geometric mean of a response's ratios (GSPO, arXiv:2507.18071, equation 7).
    sequence_token: the same value, but token t's gradient is scaled by token t's advantage alone (GSPO-token, equation 14)."""
    dual: float | None = None
    """Where A < 0 the objective is at least dual * A (dual clip, arXiv:1912.09729); above 1. None: no such floor."""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1:
            raise ValueError(f"Clipped: low must be between 0 and 1, got {self.low}")
        if not self.high >= 0:
            raise ValueError(f"Clipped: high must be at least 0, got {self.high}")
        if self.level not in ("token", "sequence", "sequence_token"):
            raise ValueError(f"Clipped: level must be token, sequence or sequence_token, got {self.level!r}")
        if self.dual is not None and not self.dual > 1:
            raise ValueError(f"Clipped: dual must be above 1 or null, got {self.dual}")

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        ratio, advantages = self.ratio(log_ratio, mask), torch.where(mask, advantages, 0.0)
        free, bound = ratio * advantages, ratio.clamp(1 - self.low, 1 + self.high) * advantages
        objective = torch.minimum(free, bound)
        if self.dual is not None:
            objective = torch.where(advantages < 0, torch.maximum(objective, self.dual * advantages), objective)
        return Surrogate(objective, bound < free)

    def ratio(self, log_ratio: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """r of the chosen level; 1 in masked slots."""
        if self.level == "token":
            return importance(log_ratio, mask)
        sequence = importance(masked_mean(log_ratio, mask)[:, None].expand_as(log_ratio), mask)
        if self.level == "sequence":
            return sequence
        own = torch.where(mask, log_ratio, 0.0)
        return sequence.detach() * (own - own.detach()).exp()
