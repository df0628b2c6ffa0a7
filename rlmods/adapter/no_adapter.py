"""Full training, without an adapter."""

from dataclasses import dataclass

from rlmods.policy import Policy


@dataclass(frozen=True)
class NoAdapter:
    """Train every weight. If the policy was loaded with an adapter, merge it first."""

    def __call__(self, policy: Policy) -> Policy:
        return policy.merged()
