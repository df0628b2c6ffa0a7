"""Reward for short answers: `python train.py reward=brevity reward.target=4`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Brevity:
    """Score 1 for an answer of at most `target` tokens, and `target / length` for a longer one."""

    target: int = 4
    """Tokens, EOS included."""

    def __call__(self, responses: Sequence[Any]) -> list[float]:
        return [min(1.0, self.target / max(1, len(response.tokens))) for response in responses]
