"""No environment: a response is a single turn."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SingleTurn:
    """A response is a single turn, to which nothing replies: the rollout samples by itself."""
