"""Training without a critic."""

from dataclasses import dataclass
from typing import ClassVar

from rlmods.policy import Policy


@dataclass(frozen=True)
class NoCritic:
    """No value network: for advantages that use other responses as the baseline, or no baseline."""

    pretraining: ClassVar[int] = 0

    def __call__(self, policy: Policy) -> None:
        return None
