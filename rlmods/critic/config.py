"""Settings shared by all critics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CriticConfig:
    """Weight, clip and learning rate of the value loss."""

    coefficient: float = 1.0
    """Weight of the value loss relative to the policy loss; above 0."""
    clip: float | None = 0.5
    """Maximum distance of V from its value at collection, beyond which the loss gives no gradient
    for moving further. Unit: standard deviations of the iteration's returns; 0.5 is 0.25 for
    returns that are 0 or 1 equally often. null: no clipping."""
    lr: float | None = None
    """Learning rate; null: the policy's."""

    def __post_init__(self) -> None:
        rules = {
            "coefficient": (self.coefficient > 0, "above 0"),
            "clip": (self.clip is None or self.clip > 0, "above 0, or null"),
            "lr": (self.lr is None or self.lr > 0, "above 0, or null"),
        }
        for name, (valid, requirement) in rules.items():
            if not valid:
                raise ValueError(f"critic.{name}={getattr(self, name)}: must be {requirement}")
