"""Learning rate adapted to the KL divergence of the updates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from rlmods.needs import ScheduleNeeds
from rlmods.settings.bounds import ABOVE_1, AT_LEAST_1, Positive, PositiveFraction, bounded


@dataclass
@bounded("schedule")
class KLAdaptive:
    """Learning rate factor f that keeps the KL divergence of the updates near a target: after each
    iteration, f <- f / rate if d > 2 target and f <- f * rate if 0 < d < target / 2, between
    `minimum` and `maximum`; f is 1 at first.

    The adaptive learning rate of PPO in rsl_rl and skrl (`KLAdaptiveLR`), by iteration; Rudin et
    al. 2021, arXiv:2109.11978. d is the iteration's `train/kl_old`, the mean of KL(pi_old || pi)
    over its optimizer steps (nats per token), so an iteration needs more than one step. f is saved
    in checkpoints."""

    target: Positive = 0.01
    """Target KL divergence between the old policy and the policy of an optimizer step, nats per
    token."""
    rate: Annotated[float, ABOVE_1] = 1.5
    """Factor by which the learning rate changes in an iteration."""
    minimum: PositiveFraction = 0.1
    """Lower bound of f, relative to `optimizer.lr`; above 0 and at most 1."""
    maximum: Annotated[float, AT_LEAST_1] = 10.0
    """Upper bound of f, relative to `optimizer.lr`."""
    _factor: float = field(default=1.0, init=False, repr=False)

    needs: ClassVar[ScheduleNeeds] = ScheduleNeeds(kl=True)

    def __call__(self, iteration: int, max_iterations: int) -> float:
        """Return the factor for the next iteration."""
        return self._factor

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        kl = metrics.get("train/kl_old", self.target)
        factor = self._factor
        if kl > 2 * self.target:
            factor = factor * (1 / self.rate)
        elif 0 < kl < self.target / 2:
            factor = factor * self.rate
        self._factor = min(max(factor, self.minimum), self.maximum)

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self._factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._factor = state["factor"]
