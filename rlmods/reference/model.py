"""Any other model as the reference."""

from dataclasses import dataclass

from rlmods.policy import Policy
from rlmods.policy.hf import FrozenModel


@dataclass(frozen=True, kw_only=True)
class Model(FrozenModel):
    """A model with the policy's vocabulary, of any size and architecture: the result of an earlier
    stage, or a larger model.

    Raises: UserError, when the policy is loaded, if there is no such model or its vocabulary
    differs."""

    def __call__(self, policy: Policy) -> Policy:
        """Return the reference."""
        return self.load(policy, "reference")
