"""A faulty reward, in a module that a worker imports at once: `+reward.terms.fault.reward._target_=tests.faults.rewards.Faulty`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any


class Faulty:
    """A reward that raises, hangs or takes its process down."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, responses: Sequence[Any]) -> list[float]:
        if self.how == "raise":
            raise LookupError("no such key")
        if self.how == "hang":
            time.sleep(60)
        if self.how == "exit":
            os._exit(9)
        return [0.0] * len(responses)
