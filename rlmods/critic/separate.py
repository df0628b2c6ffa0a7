"""A value network of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from rlmods.critic.settings import Settings
from rlmods.policy import Policy, ScalarModel
from rlmods.types import UserError


class ValueNetwork(nn.Module):
    """V(s_t) by a trunk that shares nothing with the policy."""

    def __init__(self, scalar: ScalarModel) -> None:
        super().__init__()
        self.scalar = scalar

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """V(s_t) [N, T], float32: read at the token before t, so that it is blind to token t. 0 where the mask is False."""
        shifted = nn.functional.pad(self.scalar(tokens)[:, :-1], (1, 0))
        return shifted.masked_fill(~mask, 0.0)


@dataclass(frozen=True)
class Separate(Settings):
    """A network as large as the policy's. InstructGPT starts it from the reward model (arXiv:2203.02155, section 3.5)."""

    init: str | None = None
    """Run, directory or hub name of a reward model with the policy's tokenizer: trunk and head start there. null: the policy's trunk under
    a head of zeros."""

    def __call__(self, policy: Policy) -> ValueNetwork:
        """Make it.

        Raises:
            UserError: `init` is no reward model, or one with another vocabulary.
        """
        if self.init is None:
            return ValueNetwork(ScalarModel.from_policy(policy))
        scalar = ScalarModel.load(self.init).requires_grad_(True)
        if scalar.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise UserError(f"critic.init={self.init} reads other tokens than the policy: type critic.init=null")
        return ValueNetwork(scalar.to(policy.device))
