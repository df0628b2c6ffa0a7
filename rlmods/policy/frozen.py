"""Loading of models that are not trained: references and teachers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.hf import exported, load
from rlmods.policy.text import TokenizerMixin


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """Base of parts that load a model that is not trained, from a name or by an option of the group
    `policy`."""

    name: str | None = None
    """Hub name, directory or run."""
    dtype: str = "float32"
    """Data type of the weights; bfloat16 halves their memory."""
    policy: Callable[[], Policy] | None = None
    """Option of the group `policy` that loads the model instead of `name`, with its own settings;
    null: none."""

    def load(self, student: Policy, group: str) -> Policy:
        """Load the model, with any adapter merged, for comparison with `student`.

        Args:
            group: configuration group of this part, for error messages.

        Raises:
            UserError: no model or two are given, it cannot be loaded, or its vocabulary is not the
            student's.
        """
        if (self.name is None) == (self.policy is None):
            raise UserError(
                f"{group}={type(self).__name__.lower()} needs one model: type "
                f"{group}.name=HUB_NAME_OR_DIRECTORY_OR_RUN, or +policy@{group}.policy=OPTION"
            )
        try:
            if self.policy is None:
                network = load(exported(str(self.name)), dtype=self.dtype)
            else:
                network = self.policy()
        except UserError as error:
            setting = f"name={self.name}" if self.policy is None else "policy"
            raise UserError(f"{group}.{setting}: {error}") from error
        check_vocabulary(network, student, group)
        return network.merged().requires_grad_(False).eval()


def check_vocabulary(model: TokenizerMixin, student: TokenizerMixin, group: str) -> None:
    """Check that a model has the tokens of `student`, so that log-probabilities of the same ids can
    be compared.

    Raises:
        UserError: it has others.
    """
    if model.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        raise UserError(
            f"{group}: the model has another vocabulary than the policy, so their tokens "
            f"cannot be compared: type another {group}.name="
        )
