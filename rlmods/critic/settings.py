"""What every critic can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Weight, clip and learning rate of a critic's regression."""

    coefficient: float = 1.0
    """Weight of the value loss beside the policy's; above 0."""
    clip: float | None = 0.2
    """V may move this far from what it said at collection before its loss stops paying for more. null: no such bound."""
    lr: float | None = None
    """Learning rate; null: the policy's."""

    def __post_init__(self) -> None:
        rules = {
            "coefficient": (self.coefficient > 0, "above 0"),
            "clip": (self.clip is None or self.clip > 0, "above 0, or null"),
            "lr": (self.lr is None or self.lr > 0, "above 0, or null"),
        }
        for name, (valid, wanted) in rules.items():
            if not valid:
                raise ValueError(f"critic.{name}={getattr(self, name)}: must be {wanted}")
