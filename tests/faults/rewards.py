"""A faulty reward, in a module that workers import quickly:
`+reward.terms.fault.reward._target_=tests.faults.rewards.Faulty`."""

import time
from collections.abc import Sequence
from typing import Any


class Faulty:
    """Reward that raises or hangs."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, responses: Sequence[Any]) -> list[float]:
        if self.fault == "raise":
            raise LookupError("no such key")
        if self.fault == "hang":
            time.sleep(60)
        return [0.0] * len(responses)
