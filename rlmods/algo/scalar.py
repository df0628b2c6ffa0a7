"""Learning a model of one number at every token from rows of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from rlmods.algo.offline import Offline
from rlmods.policy.scalar import ScalarModel


class Scalar(Offline):
    """Trains the policy's trunk under a head of one number; the policy itself is neither trained nor saved."""

    groups: ClassVar[tuple[str, ...]] = ("data", "policy")  # no adapter: a scalar model is trained in full

    metadata: ClassVar[dict[str, Any]]
    """What its numbers mean, for whoever loads it."""

    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        self.scalar = ScalarModel.from_policy(self.policy)
        self.scalar.metadata.update(self.metadata)
        del self.policy

    @property
    def networks(self) -> dict[str, nn.Module]:
        return {"reward_model": self.scalar}

    def export(self, folder: Path) -> None:
        self.scalar.export(folder)
