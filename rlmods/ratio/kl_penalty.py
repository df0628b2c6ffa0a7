"""KL penalty from the old policy instead of a clip."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlmods.ops import MAX_EXPONENT
from rlmods.settings.bounds import NonNegative, Positive, bounded, check_bounds
from rlmods.types import Surrogate, TokenFloats, TokenMask


@dataclass
@bounded("ratio")
class KLPenalty:
    """Adaptive KL penalty: r A - beta (r - 1 - log r). After each iteration beta doubles if d > 1.5
    target and halves if d < target / 1.5, between `minimum` and `maximum`.

    PPO with an adaptive KL penalty, arXiv:1707.06347, equation 8. Tokens are sampled from pi_old,
    so E[r] = 1 and r - 1 - log r is an estimate of KL(pi_old || pi), unbiased in value and gradient
    and at least 0 on every token. d is the iteration's `train/kl_update`, the mean of that estimate
    (nats per token) after its last step. Nothing is clipped. beta is saved in checkpoints."""

    coefficient: float = 1.0
    """beta, at least 0: the initial value in the configuration, the current value while
    training."""
    target: Positive = 0.01
    """Target KL divergence between the old policy and the updated one, nats per token."""
    minimum: NonNegative = 1e-3
    """Lower bound of beta, at least 0. Without one (0), many quiet iterations reduce beta to values
    from which it does not return."""
    maximum: float = 1e3
    """Upper bound of beta; at least `minimum`."""

    def __post_init__(self) -> None:
        minimum, maximum = self.minimum, self.maximum
        rules = {
            "maximum": (maximum >= minimum, f"at least ratio.minimum={minimum}"),
            "coefficient": (minimum <= self.coefficient <= maximum, f"from {minimum} to {maximum}"),
        }
        check_bounds(self, "ratio", rules)

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate:
        d = torch.where(mask, log_ratio, 0.0).clamp(max=MAX_EXPONENT)
        objective = d.exp() * torch.where(mask, advantages, 0.0)
        penalty = self.coefficient * (d.exp() - 1 - d)
        return Surrogate(objective - penalty, torch.zeros_like(mask))

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        kl = metrics.get("train/kl_update", self.target)
        factor = 1.0
        if kl > 1.5 * self.target:
            factor = 2.0
        elif kl < self.target / 1.5:
            factor = 0.5
        self.coefficient = min(max(self.coefficient * factor, self.minimum), self.maximum)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]
