"""No value function."""

from __future__ import annotations

from dataclasses import dataclass

from rlmods.policy import Policy


@dataclass(frozen=True)
class NoCritic:
    """No network is made: for advantages whose baseline is other responses, or none."""

    def __call__(self, policy: Policy) -> None:
        return None
