"""KL penalty from the old policy instead of a clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.ops import MAX_EXPONENT
from rlmods.types import Surrogate, check_bounds


@dataclass
class KLPenalty:
    """Adaptive KL penalty: r A - beta (r - 1 - log r). After each iteration beta doubles if d > 1.5 target and halves if d < target / 1.5.

    PPO with an adaptive KL penalty, arXiv:1707.06347, equation 8. Tokens are sampled from pi_old, so E[r] = 1 and r - 1 - log r is an
    estimate of KL(pi_old || pi), unbiased in value and gradient and at least 0 on every token. d is the iteration's `train/kl_update`, the
    mean of that estimate (nats per token) after its last step. Nothing is clipped. beta is saved in checkpoints."""

    coefficient: float = 1.0
    """beta, at least 0: the initial value in the configuration, the current value while training."""
    target: float = 0.01
    """Target KL divergence between the old policy and the updated one, nats per token; above 0."""

    def __post_init__(self) -> None:
        rules = {
            "coefficient": (isfinite(self.coefficient) and self.coefficient >= 0, "at least 0"),
            "target": (self.target > 0, "above 0"),
        }
        check_bounds(self, "ratio", rules)

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        d = torch.where(mask, log_ratio, 0.0).clamp(max=MAX_EXPONENT)
        objective = d.exp() * torch.where(mask, advantages, 0.0) - self.coefficient * (d.exp() - 1 - d)
        return Surrogate(objective, torch.zeros_like(mask))

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        kl = metrics.get("train/kl_update", self.target)
        if kl > 1.5 * self.target:
            self.coefficient *= 2
        elif kl < self.target / 1.5:
            self.coefficient /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]
