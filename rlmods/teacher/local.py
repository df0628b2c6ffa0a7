"""A model in this process as the teacher."""

from dataclasses import dataclass

from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.hf import FrozenModel
from rlmods.teacher.demonstration import Demonstrated


@dataclass(frozen=True, kw_only=True)
class Local(FrozenModel, Demonstrated):
    """A frozen model with the policy's vocabulary, on the devices of the run and sharded like the
    policy.

    Raises: UserError without a model; when the policy is loaded, if it does not exist or its
    vocabulary differs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None and self.policy is None:
            advice = (
                "type teacher.name=HUB_NAME_OR_DIRECTORY_OR_RUN, +policy@teacher.policy=OPTION, "
                "or teacher=self or teacher=server"
            )
            raise UserError(f"teacher=local needs a model: {advice}")

    def __call__(self, policy: Policy) -> Policy:
        """Return the teacher."""
        return self.load(policy, "teacher")
