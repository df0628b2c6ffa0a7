"""The policy itself as the teacher, with a demonstration in its prompt."""

from dataclasses import dataclass
from typing import Literal

from rlmods.errors import UserError
from rlmods.needs import FrozenModelNeeds
from rlmods.policy import Policy
from rlmods.teacher.demonstration import Demonstrated


@dataclass(frozen=True, kw_only=True)
class SelfTeacher(Demonstrated):
    """The policy with a demonstration in its prompt: what it can do in context becomes what it does
    without it.

    Self-distillation of SDFT (arXiv:2601.19897) and OPSD (arXiv:2601.18734).

    Raises: UserError without a demonstration, because policy and teacher would then be the same.
    """

    weights: Literal["start", "current"] = "start"
    """start: the weights that training starts from, a frozen copy. current: the policy's weights as
    they change, which takes no memory and follows the policy, also where it goes wrong."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.demonstration is None:
            raise UserError(
                "teacher=self is the policy, from which it learns nothing without a "
                "demonstration: type teacher.demonstration=COLUMN"
            )

    @property
    def needs(self) -> FrozenModelNeeds:
        return FrozenModelNeeds(copies_policy=self.weights == "start")

    def __call__(self, policy: Policy) -> Policy:
        """Return the teacher; with `weights=current` the policy itself."""
        return policy.frozen_copy() if self.weights == "start" else policy
