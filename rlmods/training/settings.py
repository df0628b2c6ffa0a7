"""Settings of the RL loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlmods.errors import check_bounds
from rlmods.types import objective


@dataclass(frozen=True)
class PolicyGradientSettings:
    """Settings of the loop, `algo.*` in the configuration. With the defaults no extension is
    added."""

    entropy_coefficient: float = objective(0.0)
    """Weight of the entropy bonus (nats per token, aggregated like the objective)."""
    target_entropy: float | None = objective(None)
    """Target entropy, nats per token, to which the weight of the entropy bonus is adapted; null:
    the weight is fixed."""
    entropy_rate: float = 0.01
    """Change of the weight per iteration and nat of distance from `target_entropy`."""
    target_kl: float | None = objective(None)
    """Target KL from the old policy, nats per token. Above 1.5 times this, the iteration makes no
    further steps; null: no early stop."""
    overlong_filter: bool = objective(False)
    """Leave truncated responses out of the loss and of its denominators."""
    max_draws: int = 10
    """Batches of prompts that one iteration may sample until `sampling` has kept enough groups."""
    fallback: Literal["train", "skip", "error"] = "train"
    """Action if too few groups are kept after `max_draws` batches: train on them, skip the
    optimizer steps, or stop with an error."""
    surplus: Literal["keep", "drop"] = "keep"
    """Kept groups that an iteration does not need: keep them for the next one, or drop (and count)
    them."""
    retire_solved: int | None = objective(None)
    """Occurrences in a row with only correct responses after which later passes over the data leave
    a prompt out; null: never."""
    retire_unsolved: int | None = objective(None)
    """The same for only wrong responses."""
    bring_back: float = objective(0.1)
    """Fraction of the prompts left out that each pass brings back, rounded up."""
    normalize_reward: bool = objective(False)
    """Normalise rewards by their running mean and standard deviation."""
    clip_reward: float | None = objective(None)
    """Bound on the absolute reward, after normalisation; null: none."""
    replay_fraction: float = objective(0.0)
    """Number of replayed rows of earlier iterations relative to the number of fresh rows; 0: no
    replay."""
    replay_staleness: int = 4
    """Iterations for which a row can be replayed."""
    reference_every: int | None = objective(None)
    """Iterations after which the reference is set to the policy (iterative GRPO); null: never."""
    ptx_coefficient: float = objective(0.0)
    """Weight of the supervised loss on the rows of `data@ptx` (InstructGPT's gamma, token mean); 0:
    none."""
    ptx_rows: int = 32
    """Rows of the supervised loss in one optimizer step, at least one per rank."""

    def __post_init__(self) -> None:
        def is_at_least(bound: float, name: str) -> bool:
            value = getattr(self, name)
            return value is None or value >= bound

        def is_positive(name: str) -> bool:
            value = getattr(self, name)
            return value is None or value > 0

        rules = {name: (is_at_least(0, name), "0 or more") for name in NON_NEGATIVE}
        rules |= {name: (is_positive(name), "above 0") for name in POSITIVE}
        rules |= {name: (is_at_least(1, name), "at least 1") for name in COUNTS}
        rules["bring_back"] = (0 <= self.bring_back <= 1, "from 0 to 1")
        check_bounds(self, "algo", rules)


NON_NEGATIVE = ("entropy_coefficient", "replay_fraction", "ptx_coefficient")
POSITIVE = ("target_entropy", "entropy_rate", "target_kl", "clip_reward")
COUNTS = (
    "max_draws",
    "replay_staleness",
    "reference_every",
    "ptx_rows",
    "retire_solved",
    "retire_unsolved",
)
