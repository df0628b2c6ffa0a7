"""Settings: sizes of an iteration, validation, the RL loop, and each algorithm with its own. Hydra
composes with them before torch is imported, so this module does not import it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlmods.errors import Limit, UserError, check_bounds


def unlabelled(default: Any) -> Any:
    """Return a dataclass field of settings that do not change what is optimised: the label of a run
    shows every other field that differs from the recipe."""
    return field(default=default, metadata={"unlabelled": True})


PADDED_BUDGET = 8192
"""Tokens of one forward and backward without a `token_budget`, padding included."""


@dataclass(frozen=True)
class Batch:
    """Number of prompts, responses, optimizer steps and tokens of one iteration."""

    prompts: int = 32
    """Prompts of one iteration, over all ranks. Offline algorithms: rows."""
    samples: int = 8
    """Responses to each prompt (G). Offline algorithms do not sample."""
    epochs: int = 1
    """Passes over the responses of one iteration."""
    minibatches: int = 1
    """Optimizer steps in one pass."""
    token_budget: int | None = None
    """Tokens of one forward and backward that are computed: a model that packs rows computes the
    prompt of a group once, and no padding. Memory grows with it; results do not change. null: as
    many as fit on a GPU (`preflight`), at most 32768; on processors, or without preflight, 8192
    with padding."""
    max_norm: Limit = 1.0
    """Gradients are clipped to this global norm."""
    max_nonfinite: int = 3
    """Number of consecutive optimizer steps with a NaN or infinite loss or gradient that ends the
    run; fewer are skipped."""
    preflight: Literal["auto"] | bool = "auto"
    """Run forward and backward of the largest microbatches before the first iteration, which shows
    a lack of memory at once and changes no result. auto: on a GPU."""

    def __post_init__(self) -> None:
        counts = ("prompts", "samples", "epochs", "minibatches", "max_nonfinite")
        rules = {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        rules["token_budget"] = (self.padded_budget >= 1, "null or at least 1")
        off = "positive; batch.max_norm=inf switches clipping off"
        check_bounds(self, "batch", {**rules, "max_norm": (self.max_norm > 0, off)})

    @property
    def padded_budget(self) -> int:
        """Tokens of one forward, padding included, of networks that do not pack rows."""
        return PADDED_BUDGET if self.token_budget is None else self.token_budget

    def runs_preflight(self, device_type: str) -> bool:
        """Return True if a run on a device such as "cuda" begins with the largest microbatches."""
        return device_type == "cuda" if self.preflight == "auto" else self.preflight

    def check_ranks(self, num_ranks: int, rows_per_prompt: int) -> None:
        """Check that ranks divide the prompts, and minibatches the rows of a rank, evenly.

        Raises:
            UserError: they do not; a step would then differ from that of a single rank.
        """
        if self.prompts % num_ranks:
            advice = f"type batch.prompts={-(-self.prompts // num_ranks) * num_ranks}"
            raise UserError(
                f"batch.prompts={self.prompts} cannot be shared evenly by {num_ranks} ranks: "
                f"{advice}"
            )
        rows = self.prompts // num_ranks * rows_per_prompt
        if rows % self.minibatches:
            fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
            rows_of_rank = f"the {rows} rows of each of {num_ranks} ranks"
            raise UserError(
                f"batch.minibatches={self.minibatches} does not divide {rows_of_rank}: type "
                f"one of {fits}"
            )


@dataclass(frozen=True)
class ValidationSettings:
    """Settings of validation, `validation.*` in the configuration."""

    every: int | None = 10
    """Iterations between two validations. There is always one before the first iteration and one at
    the end; null: only those."""
    samples: int = 0
    """k: responses sampled to each prompt for `val/mean@k`, `val/pass@k` and `val/maj@k`; 0:
    none."""
    temperature: float = 1.0
    """Temperature of these samples."""
    top_p: float = 1.0
    """Probability mass of the tokens that these samples are drawn from."""
    top_k: int = 0
    """Number of the most probable tokens that these samples are drawn from; 0: all."""
    max_tokens: int | None = None
    """Longest response of validation, in tokens; of a turn, with an environment. null: that of the
    rollout."""
    pass_at: Sequence[int] = ()
    """Further k of `val/pass@k`, at most `samples`: the unbiased estimate from all graded
    samples."""
    max_prompts: int | None = None
    """Number of held-out prompts to use, the first ones; null: all."""
    seed: int = 1234
    """Seed of these samples."""
    reward: object = None
    """Reward of validation, `reward@validation.reward=OPTION`; null: that of training."""
    data: Mapping[str, Any] | None = None
    """Named sets of held-out prompts beside those of `data`, `+data@validation.data.NAME=OPTION`;
    null: none."""

    def __post_init__(self) -> None:
        at_least_one = "null or at least 1"
        pass_at = all(isinstance(k, int) and 1 <= k <= self.samples for k in self.pass_at)
        above = "above 0; the greedy answers are in val/accuracy"
        rules = {
            "every": (self.every is None or self.every >= 1, at_least_one),
            "samples": (self.samples >= 0, "0 or more"),
            "temperature": (self.temperature > 0, above),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, at_least_one),
            "pass_at": (pass_at, "from 1 to validation.samples"),
            "max_prompts": (self.max_prompts is None or self.max_prompts >= 1, at_least_one),
        }
        check_bounds(self, "validation", rules)


@dataclass(frozen=True)
class PolicyGradientSettings:
    """Settings of the loop, `algo.*` in the configuration. With the defaults no extension is
    added."""

    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (nats per token, aggregated like the objective)."""
    target_entropy: float | None = None
    """Target entropy, nats per token, to which the weight of the entropy bonus is adapted; null:
    the weight is fixed."""
    entropy_rate: float = unlabelled(0.01)
    """Change of the weight per iteration and nat of distance from `target_entropy`."""
    target_kl: float | None = None
    """Target KL from the old policy, nats per token. Above 1.5 times this, the iteration makes no
    further steps; null: no early stop."""
    overlong_filter: bool = False
    """Leave responses that a limit on tokens truncated out of the loss and of its denominators."""
    max_draws: int = unlabelled(10)
    """Batches of prompts that one iteration may sample until `sampling` has kept enough groups."""
    fallback: Literal["train", "skip", "error"] = unlabelled("train")
    """Action if too few groups are kept after `max_draws` batches. train: on the groups that are
    kept, filled up with rows without loss. skip: no optimizer step, and the groups are kept for the
    next iteration; the iteration counts in schedules. error: stop."""
    surplus: Literal["keep", "drop"] = unlabelled("keep")
    """Kept groups that an iteration does not need: keep them for the next one, or drop (and count)
    them."""
    retire_solved: int | None = None
    """Occurrences in a row with only correct responses after which later passes over the data leave
    a prompt out; null: never."""
    retire_unsolved: int | None = None
    """The same for only wrong responses."""
    bring_back: float = 0.1
    """Fraction of the prompts left out that each pass brings back, rounded up."""
    normalize_reward: bool = False
    """Normalise rewards by their running mean and standard deviation."""
    clip_reward: float | None = None
    """Bound on the absolute reward, after normalisation; null: none."""
    replay_fraction: float = 0.0
    """Number of replayed rows of earlier iterations relative to the number of fresh rows; 0: no
    replay."""
    replay_staleness: int = unlabelled(4)
    """Iterations for which a row can be replayed."""
    reference_every: int | None = None
    """Iterations after which the reference is set to the policy (iterative GRPO); null: never."""
    ptx_coefficient: float = 0.0
    """Weight of the supervised loss on the rows of `data@ptx` (InstructGPT's gamma, token mean); 0:
    none."""
    ptx_rows: int = unlabelled(32)
    """Rows of the supervised loss in one optimizer step, at least one per rank."""
    positive_coefficient: float = 0.0
    """Weight of the supervised loss on sampled responses that are correct (VAPO,
    arXiv:2504.05118), the mean over their tokens; 0: none. A response is correct if its correctness
    or, if the reward reports none, its reward is at least 0.5."""
    observation_coefficient: float = 0.0
    """Weight of the supervised loss on what the policy observes between its turns (ECHO,
    arXiv:2605.24517), the mean over these tokens; 0: none."""

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


@dataclass(frozen=True)
class IterativeGRPOSettings(PolicyGradientSettings):
    """Settings of iterative GRPO, `algo.*` in the configuration."""

    reference_every: int | None = 20
    """Number of iterations of a round."""
    refresh_prompts: int = unlabelled(256)
    """Prompts judged in a round, the same number in each of its iterations."""
    refresh_lr: float = unlabelled(1e-4)
    """Learning rate of the reward model."""
    refresh_epochs: int = unlabelled(1)
    """Passes over the rankings of a round."""
    refresh_rows: int = unlabelled(32)
    """Prompts of one optimizer step of the reward model."""
    refresh_replay: float = unlabelled(0.1)
    """Fraction of rankings from earlier rounds among those trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("refresh_prompts", "refresh_epochs", "refresh_rows")
        rules = {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        rules["refresh_lr"] = (self.refresh_lr > 0, "above 0")
        rules["refresh_replay"] = (0 <= self.refresh_replay < 1, "0 or more and below 1")
        check_bounds(self, "algo", rules)


@dataclass(frozen=True)
class GKDSettings:
    """Settings of GKD, `algo.*` in the configuration."""

    beta: float = 0.5
    """Divergence: 0 the forward KL(teacher || policy), 1 the reverse KL(policy || teacher), between
    them the generalised Jensen-Shannon divergence."""
    top_k: int | None = None
    """Compare the probabilities of the k tokens that are most likely under the policy, and of all
    others together (SDPO, arXiv:2601.20802); null: of every token."""
    on_policy_fraction: float = 0.5
    """Probability that the policy samples the response to a prompt (the paper's lambda). The others
    take the response of the data."""

    def __post_init__(self) -> None:
        rules = {
            "beta": (0 <= self.beta <= 1, "from 0 to 1"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1"),
            "on_policy_fraction": (0 <= self.on_policy_fraction <= 1, "from 0 to 1"),
        }
        check_bounds(self, "algo", rules)


@dataclass(frozen=True)
class DPOSettings:
    """Settings of DPO, `algo.*` in the configuration."""

    reference: Literal["live", "precomputed"] = unlabelled("live")
    """live: score the rows of each iteration with the reference. precomputed: score the whole data
    once, then free its memory."""
    sft_coefficient: float = 0.0
    """Weight of the supervised loss on the best response (RPO, arXiv:2404.19733)."""
    dropout: float = 0.0
    """Probability of the model's dropout in training; the reference and validation have none."""

    def __post_init__(self) -> None:
        rules = {
            "sft_coefficient": (self.sft_coefficient >= 0, "0 or more"),
            "dropout": (0 <= self.dropout < 1, "0 or more and below 1"),
        }
        check_bounds(self, "algo", rules)


@dataclass(frozen=True)
class OnlineDPOSettings(DPOSettings):
    """Settings of online DPO, `algo.*` in the configuration."""

    reference_every: int | None = None
    """Iterations after which the reference is set to the policy (iterative DPO, arXiv:2312.16682);
    null: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = self.reference_every is None or self.reference_every >= 1
        check_bounds(self, "algo", {"reference_every": (is_valid, "at least 1")})


@dataclass(frozen=True)
class RewardModelSettings:
    """Settings of reward models, `algo.*` in the configuration."""

    pooling: Literal["last", "mean", "sum", "weighted_sum", "max", "min"] = "last"
    """Reduction of the scores at the tokens of a response to one score. last: the score at its
    end-of-text token. weighted_sum: a mean with weights that grow linearly with the position
    (arXiv:2202.08904)."""
    centre: float = 0.0
    """Weight of the squared sum of a prompt's scores, which keeps them near 0
    (arXiv:2312.09244)."""
    zero_mean: bool = unlabelled(True)
    """The exported model subtracts the mean score of the held-out responses (InstructGPT,
    arXiv:2203.02155, section 3.5)."""
    dropout: float = 0.0
    """Probability of the model's dropout in training; validation has none."""

    def __post_init__(self) -> None:
        rules = {
            "centre": (self.centre >= 0, "0 or more"),
            "dropout": (0 <= self.dropout < 1, "0 or more and below 1"),
        }
        check_bounds(self, "algo", rules)


@dataclass(frozen=True)
class ProcessRewardModelSettings:
    """Settings of process reward models, `algo.*` in the configuration."""

    dropout: float = 0.0
    """Probability of the model's dropout in training; validation has none."""

    def __post_init__(self) -> None:
        check_bounds(self, "algo", {"dropout": (0 <= self.dropout < 1, "0 or more and below 1")})


NON_NEGATIVE = (
    "entropy_coefficient",
    "replay_fraction",
    "ptx_coefficient",
    "positive_coefficient",
    "observation_coefficient",
)
POSITIVE = ("target_entropy", "entropy_rate", "target_kl", "clip_reward")
COUNTS = (
    "max_draws",
    "replay_staleness",
    "reference_every",
    "ptx_rows",
    "retire_solved",
    "retire_unsolved",
)
