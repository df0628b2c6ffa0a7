"""Settings: sizes of an iteration, validation, the RL loop, and each algorithm with its own. Hydra
composes with them before torch is imported, so this module does not import it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlmods.errors import UserError
from rlmods.settings.bounds import (
    ABOVE_0,
    Bound,
    Count,
    Fraction,
    Limit,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveFraction,
    ProperFraction,
    bounded,
    check_bounds,
)

CLIPPING = Bound("above 0; batch.max_norm=inf switches clipping off", ABOVE_0.holds)
SAMPLING = Bound("above 0; the greedy answers are in val/accuracy", ABOVE_0.holds)


def unlabelled(default: Any) -> Any:
    """Return a dataclass field of settings that do not change what is optimised: the label of a run
    shows every other field that differs from the recipe."""
    return field(default=default, metadata={"unlabelled": True})


PADDED_BUDGET = 8192
"""Tokens of one forward and backward without a `token_budget`, padding included."""


@dataclass(frozen=True)
@bounded("batch")
class Batch:
    """Number of prompts, responses, optimizer steps and tokens of one iteration."""

    prompts: Count = 32
    """Prompts of one iteration, over all ranks. Offline algorithms: rows."""
    samples: Count = 8
    """Responses to each prompt (G). Offline algorithms do not sample."""
    epochs: Count = 1
    """Passes over the responses of one iteration."""
    minibatches: Count = 1
    """Optimizer steps in one pass."""
    token_budget: Count | None = None
    """Tokens of one forward and backward that are computed: a model that packs rows computes the
    prompt of a group once, and no padding. Memory grows with it; results do not change. null: as
    many as fit on a GPU (`preflight`), at most 32768; on processors, or without preflight, 8192
    with padding."""
    max_norm: Annotated[Limit, CLIPPING] = 1.0
    """Gradients are clipped to this global norm."""
    max_nonfinite: Count = 3
    """Number of consecutive optimizer steps with a NaN or infinite loss or gradient that ends the
    run; fewer are skipped. Overflows with `trainer.precision=16-mixed` count only once the scale of
    the loss is 1."""
    preflight: Literal["auto"] | bool = "auto"
    """Run forward and backward of the largest microbatches before the first iteration, which shows
    a lack of memory at once and changes no result. auto: on a GPU."""

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
@bounded("validation")
class ValidationSettings:
    """Settings of validation, `validation.*` in the configuration."""

    every: Count | None = 10
    """Iterations between two validations; null: none between the first and the last. There is one
    before the first iteration and one at the end of a run, except of a run that a signal, a rule of
    the monitor or an error ends."""
    samples: NonNegativeInt = 0
    """k: responses sampled to each prompt for `val/mean@k`, `val/pass@k` and `val/maj@k`; 0:
    none."""
    temperature: Annotated[float, SAMPLING] = 1.0
    """Temperature of these samples."""
    top_p: PositiveFraction = 1.0
    """Probability mass of the tokens that these samples are drawn from."""
    top_k: NonNegativeInt = 0
    """Number of the most probable tokens that these samples are drawn from; 0: all."""
    max_tokens: Count | None = None
    """Longest response of validation, in tokens; of a turn, with an environment. null: that of the
    rollout."""
    pass_at: Sequence[int] = ()
    """Further k of `val/pass@k`, at most `samples`: the unbiased estimate from all graded
    samples."""
    max_prompts: Count | None = None
    """Number of held-out prompts to use, the first ones; null: all."""
    seed: int = 1234
    """Seed of these samples."""
    reward: object = None
    """Reward of validation, `reward@validation.reward=OPTION`; null: that of training."""
    data: Mapping[str, Any] | None = None
    """Named sets of held-out prompts beside those of `data`, `+data@validation.data.NAME=OPTION`;
    null: none."""

    def __post_init__(self) -> None:
        valid = all(isinstance(k, int) and 1 <= k <= self.samples for k in self.pass_at)
        check_bounds(self, "validation", {"pass_at": (valid, "from 1 to validation.samples")})


@dataclass(frozen=True)
@bounded("algo")
class PolicyGradientSettings:
    """Settings of the loop, `algo.*` in the configuration. With their defaults they add no
    extension; parts may."""

    entropy_coefficient: NonNegative = 0.0
    """Weight of the entropy bonus (nats per token, aggregated like the objective)."""
    target_entropy: Positive | None = None
    """Target entropy, nats per token, to which the weight of the entropy bonus is adapted; null:
    the weight is fixed."""
    entropy_rate: Positive = unlabelled(0.01)
    """Change of the weight per iteration and nat of distance from `target_entropy`."""
    target_kl: Positive | None = None
    """Target KL from the old policy, nats per token. Above 1.5 times this, the iteration makes no
    further steps; null: no early stop."""
    overlong_filter: bool = False
    """Leave responses that a limit on tokens truncated out of the loss and of its denominators."""
    max_draws: Count = unlabelled(10)
    """Batches of prompts that one iteration may sample until `sampling` has kept enough groups."""
    fallback: Literal["train", "skip", "error"] = unlabelled("train")
    """Action if too few groups are kept after `max_draws` batches. train: on the groups that are
    kept, filled up with rows without loss. skip: no optimizer step, and the newest groups, at most
    as many as an iteration trains on, are kept for the next one; the iteration counts in schedules.
    error: stop."""
    surplus: Literal["keep", "drop"] = unlabelled("keep")
    """Kept groups that an iteration does not need: keep them for the next one, or drop (and count)
    them."""
    retire_solved: Count | None = None
    """Occurrences in a row with only correct responses after which later passes over the data leave
    a prompt out; null: never."""
    retire_unsolved: Count | None = None
    """The same for only wrong responses."""
    bring_back: Fraction = 0.1
    """Fraction of the prompts left out that each pass brings back, rounded up."""
    normalize_reward: bool = False
    """Normalise rewards by their running mean and standard deviation."""
    clip_reward: Positive | None = None
    """Bound on the absolute reward, after normalisation; null: none."""
    replay_fraction: NonNegative = 0.0
    """Number of replayed rows of earlier iterations relative to the number of fresh rows; 0: no
    replay."""
    replay_staleness: Count = unlabelled(4)
    """Iterations for which a row can be replayed."""
    reference_every: Count | None = None
    """Iterations after which the reference is set to the policy (iterative GRPO); null: never."""
    ptx_coefficient: NonNegative = 0.0
    """Weight of the supervised loss on the rows of `data@ptx` (InstructGPT's gamma, token mean); 0:
    none."""
    ptx_rows: Count = unlabelled(32)
    """Rows of the supervised loss in one optimizer step, at least one per rank."""
    positive_coefficient: NonNegative = 0.0
    """Weight of the supervised loss on sampled responses that are correct (VAPO,
    arXiv:2504.05118), the mean over their tokens; 0: none. A response is correct if its correctness
    or, if the reward reports none, its reward is at least 0.5."""
    observation_coefficient: NonNegative = 0.0
    """Weight of the supervised loss on what the policy observes between its turns (ECHO,
    arXiv:2605.24517), the mean over these tokens; 0: none."""


@dataclass(frozen=True)
class IterativeGRPOSettings(PolicyGradientSettings):
    """Settings of iterative GRPO, `algo.*` in the configuration."""

    reference_every: Count | None = 20
    """Number of iterations of a round."""
    refresh_prompts: Count = unlabelled(256)
    """Prompts judged in a round, the same number in each of its iterations."""
    refresh_lr: Positive = unlabelled(1e-4)
    """Learning rate of the reward model."""
    refresh_epochs: Count = unlabelled(1)
    """Passes over the rankings of a round."""
    refresh_rows: Count = unlabelled(32)
    """Prompts of one optimizer step of the reward model."""
    refresh_replay: ProperFraction = unlabelled(0.1)
    """Fraction of rankings from earlier rounds among those trained on."""


@dataclass(frozen=True)
@bounded("algo")
class GKDSettings:
    """Settings of GKD, `algo.*` in the configuration."""

    beta: Fraction = 0.5
    """Divergence: 0 the forward KL(teacher || policy), 1 the reverse KL(policy || teacher), between
    them the generalised Jensen-Shannon divergence."""
    top_k: Count | None = None
    """Compare the probabilities of the k tokens that are most likely under the policy, and of all
    others together (SDPO, arXiv:2601.20802); null: of every token."""
    on_policy_fraction: Fraction = 0.5
    """Probability that the policy samples the response to a prompt (the paper's lambda). The others
    take the response of the data."""


@dataclass(frozen=True)
@bounded("algo")
class DPOSettings:
    """Settings of DPO, `algo.*` in the configuration."""

    reference: Literal["live", "precomputed"] = unlabelled("live")
    """live: score the rows of each iteration with the reference. precomputed: score the whole data
    once, then free its memory."""
    sft_coefficient: NonNegative = 0.0
    """Weight of the supervised loss on the best response (RPO, arXiv:2404.19733)."""
    dropout: ProperFraction = 0.0
    """Probability of the model's dropout in training; the reference and validation have none."""


@dataclass(frozen=True)
class OnlineDPOSettings(DPOSettings):
    """Settings of online DPO, `algo.*` in the configuration."""

    reference_every: Count | None = None
    """Iterations after which the reference is set to the policy (iterative DPO, arXiv:2312.16682);
    null: never."""


@dataclass(frozen=True)
@bounded("algo")
class RewardModelSettings:
    """Settings of reward models, `algo.*` in the configuration."""

    pooling: Literal["last", "mean", "sum", "weighted_sum", "max", "min"] = "last"
    """Reduction of the scores at the tokens of a response to one score. last: the score at its
    end-of-text token. weighted_sum: a mean with weights that grow linearly with the position
    (arXiv:2202.08904)."""
    centre: NonNegative = 0.0
    """Weight of the squared sum of a prompt's scores, which keeps them near 0
    (arXiv:2312.09244)."""
    zero_mean: bool = unlabelled(True)
    """The exported model subtracts the mean score of the held-out responses (InstructGPT,
    arXiv:2203.02155, section 3.5)."""
    dropout: ProperFraction = 0.0
    """Probability of the model's dropout in training; validation has none."""


@dataclass(frozen=True)
@bounded("algo")
class ProcessRewardModelSettings:
    """Settings of process reward models, `algo.*` in the configuration."""

    dropout: ProperFraction = 0.0
    """Probability of the model's dropout in training; validation has none."""
