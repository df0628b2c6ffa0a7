"""What a part has to look like. Structural: a plugin inherits nothing and imports nothing of ours that it does not need.

Any part may also be a `Controller`: one that changes while training, and is saved and restored with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.types import Credit, Prompt, Response, Scores, Surrogate, Totals


@runtime_checkable
class Advantage(Protocol):
    """Rewards to credit per token. A class attribute asks for what it needs: `needs_values = True` for a critic, `needs_group = True` for
    G > 1, `needs_greedy = True` for the reward of a greedy answer to each prompt (as `values`, on every token of the prompt's responses),
    `needs_steps = True` for rewards by step, and then for one more argument, `steps`: bool [N, T], True where a step ends."""

    def __call__(
        self, rewards: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], group: Int[Tensor, " N"], values: Float[Tensor, "N T"] | None
    ) -> Credit: ...


@runtime_checkable
class Ratio(Protocol):
    """How far the policy may move from the one that sampled: log(pi / pi_old) and advantages to an objective to maximise. One that does not
    weigh tokens by their own ratios says so in an attribute `level` other than `"token"`: routers of experts then disturb it little."""

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
    """Which responses are worth training on, from their unshaped correctness (or total score). A group goes as a whole where none of its
    rows is kept; a row that is not kept in a group that stays has had its part in the baseline, and carries no loss."""

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

    def sync(self, policy: Any, *, iteration: int) -> None:
        """Take over the policy's weights: everything generated afterwards comes from them."""
        ...


@runtime_checkable
class Judge(Protocol):
    """Compares two responses to one prompt: 1.0 the first is better, 0.0 the second, 0.5 a tie, None no verdict."""

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None: ...


def compare(judge: Judge, pairs: Sequence[tuple[Prompt, str, str]]) -> list[float | None]:
    """Return one verdict per pair, from one call of `judge.compare(pairs)` if the judge has it, else from one call per pair.

    Raises:
        ValueError: a verdict outside 0 to 1.
    """
    verdicts = judge.compare(pairs) if hasattr(judge, "compare") else [judge(*pair) for pair in pairs]
    for verdict in verdicts:
        if verdict is not None and not 0 <= verdict <= 1:
            raise ValueError(f"{type(judge).__name__} returned the verdict {verdict}: it must be 1.0, 0.5, 0.0 or None")
    return list(verdicts)


@runtime_checkable
class Controller(Protocol):
    """A part that changes while training: an adaptive coefficient, a running baseline. Resuming restores it exactly."""

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """Called after every iteration with what is logged for it, which is the same on every rank."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
