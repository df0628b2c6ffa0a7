"""A user's reward without error handling. Imports none of our slow modules."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.grading.grader import verify


@dataclass(frozen=True)
class Plugin:
    """Reward that hangs, exits or raises if the prompt says so."""

    def __call__(self, responses: Sequence[Any]) -> list[float | None]:
        return [self.score(response) for response in responses]

    def score(self, response: Any) -> float | None:
        attack = response.prompt.meta["attack"]
        if attack == "loop":
            while True:
                pass
        if attack == "exit":
            os._exit(0)
        if attack == "bomb":
            return float(len(bytearray(2**41)))
        if attack == "raise":
            raise LookupError("no such thing")
        if attack == "print":
            print('{"ok": {"value": 9.0, "correct": true, "counts": {}}}', flush=True)
        if attack in ("nan", "inf"):
            return float(attack)
        return float(verify(response.text, response.prompt.answer))
