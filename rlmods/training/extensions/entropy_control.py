"""Adaptive weight of the entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlmods.training.extensions.base import Extension


class EntropyControl(Extension):
    """Adapt the weight c of the entropy bonus so that the entropy H stays near a target: c <-
    max(0, c + rate * (target - H)).

    Dual ascent on `maximise J subject to H >= target`, as soft actor-critic tunes its temperature
    (arXiv:1812.05905, section 5)."""

    def __init__(self, target: float, rate: float = 0.01) -> None:
        """
        Args:
            target: nats per token.
            rate: change of c per iteration and nat of distance from the target.
        """
        self.target, self.rate = target, rate

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if "train/entropy" in metrics:
            self.loop.entropy_coefficient = max(
                0.0,
                self.loop.entropy_coefficient
                + self.rate * (self.target - metrics["train/entropy"]),
            )

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.loop.entropy_coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loop.entropy_coefficient = state["coefficient"]
