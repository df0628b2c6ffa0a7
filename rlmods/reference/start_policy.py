"""The policy that training starts from, as the reference."""

from dataclasses import dataclass

from rlmods.needs import FrozenModelNeeds
from rlmods.policy import Policy


@dataclass(frozen=True)
class StartPolicy:
    """A frozen copy of the policy as it is when training starts. Under an adapter, which starts as
    the identity, it is the base without the adapter, and needs no second copy of the base's
    weights."""

    needs = FrozenModelNeeds(copies_policy=True)

    def __call__(self, policy: Policy) -> Policy:
        """Return the reference."""
        return policy.frozen_copy()
