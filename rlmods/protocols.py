"""What a part has to look like. Structural: a plugin inherits nothing and imports nothing of ours that it does not need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.types import Credit, Prompt, Response, Scores, Surrogate, Totals

if TYPE_CHECKING:
    from rlmods.policy.base import Policy


@runtime_checkable
class Advantage(Protocol):
    """Rewards to credit per token. A class attribute `needs_values = True` asks for a critic, `needs_group = True` for G > 1."""

    def __call__(
        self, rewards: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], group: Int[Tensor, " N"], values: Float[Tensor, "N T"] | None
    ) -> Credit: ...


@runtime_checkable
class Ratio(Protocol):
    """How far the policy may move from the one that sampled: log(pi / pi_old) and advantages to an objective to maximise."""

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate: ...


@runtime_checkable
class KL(Protocol):
    """Distance from the reference, unscaled. `coefficient` scales it; `where` says whether it is a loss or taken off the reward."""

    coefficient: float
    where: str

    def __call__(self, logprobs: Float[Tensor, "N T"], ref_logprobs: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]: ...


@runtime_checkable
class Aggregation(Protocol):
    """Per-token losses to one number. Additive: for fixed totals, f(a ++ b) == f(a) + f(b)."""

    def __call__(self, x: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], totals: Totals) -> Float[Tensor, ""]: ...


@runtime_checkable
class Sampling(Protocol):
    """Which responses are worth training on, from their unshaped correctness (or total score): whole groups, never single rows."""

    def __call__(self, scores: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Bool[Tensor, " N"]: ...


@runtime_checkable
class Reward(Protocol):
    """Grades responses. A plain list of floats is fine; `Scores` carries more. None where it abstains."""

    def __call__(self, responses: Sequence[Response]) -> Scores | Sequence[float | None]: ...


@runtime_checkable
class Rollout(Protocol):
    """Samples responses. Temperature 1 and no truncation unless it says otherwise through its own fields."""

    def generate(self, prompts: Sequence[Prompt], *, samples: int, iteration: int) -> list[Response]:
        """`samples` responses to each prompt, prompt-major."""
        ...

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Take over the policy's weights: everything generated afterwards comes from them."""
        ...


@runtime_checkable
class Judge(Protocol):
    """Compares two responses to one prompt: 1.0 the first is better, 0.0 the second, 0.5 a tie, None no verdict."""

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None: ...
