"""No adapter."""

from __future__ import annotations

from dataclasses import dataclass

from rlmods.policy import Policy


@dataclass(frozen=True)
class NoAdapter:
    """Every weight is trained; an adapter that the policy was loaded with is merged into them."""

    def __call__(self, policy: Policy) -> Policy:
        return policy.merged()
