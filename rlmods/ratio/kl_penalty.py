"""A penalty on the distance from the policy that sampled, instead of a clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import MAX_EXPONENT
from rlmods.types import Surrogate


@dataclass
class KLPenalty:
    """r A - beta (r - 1 - log r), and after every iteration beta is doubled where d > 1.5 target and halved where d < target / 1.5.

    PPO with an adaptive KL penalty, arXiv:1707.06347, equation 8. Tokens come from pi_old, so E[r] = 1 and E[r - 1 - log r] is
    KL(pi_old || pi), without bias in value and in gradient; it is at least 0 on every token. d is the iteration's `train/kl_update`, the
    mean of that estimate (nats per token) after its last step. Nothing is ever clipped. beta is saved and restored with the run."""

    coefficient: float = 1.0
    """beta: at the start of the run where it is given, and from then on the current one; at least 0."""
    target: float = 0.01
    """Distance of an update from the policy that sampled, nats per token; above 0."""

    def __post_init__(self) -> None:
        if not (isfinite(self.coefficient) and self.coefficient >= 0):
            raise ValueError(f"KLPenalty: coefficient must be at least 0, got {self.coefficient}")
        if not self.target > 0:
            raise ValueError(f"KLPenalty: target must be above 0, got {self.target}")

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        d = torch.where(mask, log_ratio, 0.0).clamp(max=MAX_EXPONENT)
        objective = d.exp() * torch.where(mask, advantages, 0.0) - self.coefficient * (d.exp() - 1 - d)
        return Surrogate(objective, torch.zeros_like(mask))

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        distance = metrics.get("train/kl_update", self.target)
        if distance > 1.5 * self.target:
            self.coefficient *= 2
        elif distance < self.target / 1.5:
            self.coefficient /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]
