"""Value networks: none, one of its own, or a head on the policy's trunk."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlmods.critic.loss import CriticConfig
from rlmods.distributed.deferred import is_checked_later
from rlmods.distributed.sharding import device_of
from rlmods.errors import UserError
from rlmods.ops import scatter
from rlmods.policy import Policy, ScalarModel
from rlmods.policy.packing import enable_packing, packed_states, padded_states


@dataclass(frozen=True)
class NoCritic:
    """No value network: for advantages that use other responses as the baseline, or no baseline."""

    pretraining: ClassVar[int] = 0

    def __call__(self, policy: Policy) -> None:
        return None


class ValueNetwork(nn.Module):
    """V(s_t) of a trunk that shares no weights with the policy."""

    forward_methods: ClassVar[tuple[str, ...]] = ("check",)
    """Methods other than `forward` that run the network; sharding registers them."""

    def __init__(self, scalar: ScalarModel) -> None:
        super().__init__()
        self.scalar = scalar
        self.packs = False
        """True if forwards compute equal prefixes of rows once and no padding, as those of the
        policy (`rlmods.policy.packing`)."""
        self.is_checked = False
        """True after `check`, which the learner may call later (`is_checked_later`)."""
        if not is_checked_later(scalar):
            self.check()

    def check(self) -> None:
        """Pack rows if the architecture with its weights then computes the same."""
        self.packs = enable_packing(self.scalar.model, device_of(self))
        self.is_checked = True

    @property
    def needs_train_mode(self) -> bool:
        """True if training needs train mode: for gradient checkpointing."""
        return self.scalar.needs_train_mode

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return V(s_t) [N, T], float32, from the hidden state of token t - 1, so that it is
        independent of token t. 0 outside the mask."""
        device = tokens.device.type
        # A cast cached under no_grad has no gradient, as in the policy: never cache casts.
        with torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
            states = (packed_states if self.packs else padded_states)(
                self.scalar.model, tokens, mask
            )
        return scatter(states.by_token(self.scalar.head(states.hidden)), mask)


@dataclass(frozen=True)
class Separate(CriticConfig):
    """A value network of the policy's size. InstructGPT initialises it from the reward model
    (arXiv:2203.02155, section 3.5)."""

    init: str | None = None
    """Run, directory or hub name of a reward model with the policy's tokenizer and pooling `last`,
    from which trunk and head are initialised; its offset is subtracted in the head's bias. null:
    the policy's trunk with a zero head."""

    def __call__(self, policy: Policy) -> ValueNetwork:
        """Return the value network.

        Raises:
            UserError: `init` is not a reward model, has another vocabulary, or pools the scores of
            several tokens.
        """
        if self.init is None:
            return ValueNetwork(ScalarModel.from_policy(policy))
        scalar = ScalarModel.load(self.init).requires_grad_(True)
        if scalar.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise UserError(
                f"critic.init={self.init} has another tokenizer than the policy: type "
                "critic.init=null"
            )
        pooling = scalar.metadata.get("pooling", "last")
        if pooling != "last":
            advice = "type critic.init=null, or train a reward model with algo.pooling=last"
            raise UserError(
                f"critic.init={self.init}: its score is the {pooling} over tokens, and a "
                f"value is a score at one token: {advice}"
            )
        scalar.fold_offset()
        return ValueNetwork(scalar.to(policy.device))


class ValueHead(nn.Module):
    """A linear layer from the policy's hidden state to one value, float32, initialised to 0."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.linear(hidden.float())
        return values


@dataclass(frozen=True)
class Shared(CriticConfig):
    """A value head on the policy's trunk: one linear layer. The value loss also trains the trunk
    (PPO, arXiv:1707.06347, equation 9), so choose `coefficient` with care."""

    def __call__(self, policy: Policy) -> ValueHead:
        """Return the value head."""
        return ValueHead(policy.model.config.get_text_config().hidden_size).to(policy.device)
