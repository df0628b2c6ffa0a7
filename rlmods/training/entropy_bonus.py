"""Weight of the entropy bonus, fixed or adaptive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class EntropyBonus:
    """Adapt the weight c of the entropy bonus so that the entropy H stays near a target: c <-
    max(0, c + rate * (target - H)).

    Dual ascent on `maximise J subject to H >= target`, as soft actor-critic tunes its temperature
    (arXiv:1812.05905, section 5)."""

    coefficient: float
    """c."""
    target: float | None = None
    """Nats per token; None: c is fixed."""
    rate: float = 0.01
    """Change of c per iteration and nat of distance from the target."""

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if self.target is not None and "train/entropy" in metrics:
            distance = self.target - metrics["train/entropy"]
            self.coefficient = max(0.0, self.coefficient + self.rate * distance)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]
