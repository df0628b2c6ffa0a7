"""Declarations of the parts: what a part needs from the training loop, and what the loop and the
rules must know about it.

A part declares them in one class attribute, or in a property if they depend on its fields:

    needs = AdvantageNeeds(values=True, credit="token")

A part without `needs` has the defaults below. `needs_of` is the only reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from rlmods.errors import UserError

Credits = Literal["response", "reward_to_go", "token"]
"""From the coarsest to the finest."""


@dataclass(frozen=True, kw_only=True)
class AdvantageNeeds:
    """Declarations of an advantage estimator."""

    values: bool = False
    """A critic, whose values are the argument `values`."""
    greedy: bool = False
    """The reward of the greedy response to each prompt, as `values` on every token of the prompt's
    responses."""
    group: bool = False
    """More than one response per prompt."""
    steps: bool = False
    """Rewards by step, and the argument `steps`: bool [N, T], True where a step ends."""
    outcomes: bool = False
    """The argument `outcomes` [N], NaN for none: the rewards per response, which `rewards` then
    does not contain."""
    turns: bool = False
    """The arguments `turn` and `state`: int [N, T], `Experience.turn` and `Experience.state`."""
    branches: bool = False
    """The argument `origin`: int [N, T], `Experience.origin`, or None if no tokens are shared."""
    terms: bool = False
    """The arguments `terms` [N, K], the scores of the reward's terms (NaN: abstained), and
    `weights` [K]."""
    teacher: bool = False
    """The argument `teacher_log_ratio` [N, T]: log p_teacher - log pi_old of each token, 0 where
    the teacher has nothing to show. The group `teacher` is then part of the run."""
    nonnegative: bool = False
    """Rewards of at least 0."""
    correctness: bool = False
    """`rewards` are the scores by which `sampling` selects (unshaped correctness, or the total
    reward if the reward does not report it), without scaling and KL."""
    normalizes_rewards: bool = False
    """Divides by a statistic of the rewards of a group, such as their standard deviation. A KL in
    the reward would change that divisor, so it is subtracted afterwards: A_t - beta * (KL_t +
    KL_{t+1} + ...)."""
    normalizes_batch: bool = False
    """Normalises over all rows that an iteration trains on (`BatchAdvantage`)."""
    discount: float = 1.0
    """Discount per token of the critic's returns."""
    credit: Credits = "response"
    """response: one advantage per response. token: the tokens of a response may have different
    ones. reward_to_go: they differ only if single tokens are rewarded, as by a KL in the reward."""

    @staticmethod
    def combine(estimators: Sequence[object]) -> AdvantageNeeds:
        """Return the needs of a sum of estimators: every one that a term has."""
        members = [needs_of(estimator, AdvantageNeeds) for estimator in estimators]
        flags = _of_any(AdvantageNeeds, members, without=("credit", "discount"))
        order: tuple[Credits, ...] = get_args(Credits)
        finest: Credits = max(
            (needs.credit for needs in members), key=order.index, default="response"
        )
        return AdvantageNeeds(**flags, credit=finest)


@dataclass(frozen=True, kw_only=True)
class RatioNeeds:
    """Declarations of a ratio."""

    old_logprobs: bool = False
    """The argument `old_logprobs` [N, T]: log pi_old of each token."""
    entropy: bool = False
    """The argument `entropy` [N, T]: entropy of the policy's distribution at each token, nats, at
    the temperature of the log-probabilities. It carries a gradient; `detach()` it to use it as a
    weight."""
    temperature: float | None = None
    """Temperature of the log-probabilities; None: the rollout's."""
    level: Literal["token", "sequence", "sequence_token", "none"] = "token"
    """token: each token is weighted by its own ratio. Other levels are affected little by changed
    expert routing. sequence: all tokens of a response must have the same advantage."""


@dataclass(frozen=True, kw_only=True)
class TokenNeeds:
    """Declarations of a selection of tokens."""

    step: bool = False
    """Compares the tokens of an optimizer step: it is called once with all rows of this rank before
    the step, at the cost of another forward of them. Otherwise it is called with the rows of each
    microbatch, and compares tokens of a row only."""
    behavior: bool = False
    """The argument `behavior_logprobs` [N, T]."""
    entropy: bool = False
    """The argument `entropy` [N, T]: entropy of the policy's distribution at each token, nats."""
    draws: bool = False
    """The argument `draws` [N, T]: uniform random numbers that depend on the tokens of a row and
    the number of the optimizer step, so that they are the same on any number of ranks."""
    distance: bool = False
    """Reads the distance from the old policy. It is 0 in the first optimizer step on fresh rows,
    so an iteration needs several steps, or replayed rows."""


@dataclass(frozen=True, kw_only=True)
class KLNeeds:
    """Declarations of a KL."""

    reference: bool = True
    """A reference."""
    distributions: bool = False
    """The log-probabilities of all tokens of the vocabulary, for `where = "loss"`: two tensors
    [n, V] at n tokens, with a result [n]."""


@dataclass(frozen=True, kw_only=True)
class SamplingNeeds:
    """Declarations of a sampling filter."""

    group: bool = False
    """More than one response per prompt."""
    selects_rows: bool = False
    """Selects the best responses of a group, and not whole groups."""


@dataclass(frozen=True, kw_only=True)
class PreferenceNeeds:
    """Declarations of a preference loss."""

    reference: bool = True
    """A reference."""
    pairs: bool = True
    """Prompts with a response that is preferred to another one."""
    kl: bool = False
    """The argument `kl`: KL(pi || pi_ref) of the optimizer step."""


@dataclass(frozen=True, kw_only=True)
class RewardNeeds:
    """Declarations of a reward."""

    answer: bool = False
    """The gold answer of each prompt."""
    group: bool = False
    """All responses to a prompt in one call, because it compares them."""
    turns: bool = False
    """`Response.turns`."""
    columns: tuple[str, ...] = ()
    """Names of its fields that name a column of the data. At least one row must have it."""
    runs_code: bool = False
    """Runs the response as a program."""
    gives_steps: bool = False
    """Returns one reward per step in `Scores.tokens`. They must not be added up, because their sum
    grows with the number of steps."""
    gives_outcomes: bool = True
    """Returns one reward per response; a reward that returns rewards by step only declares
    False."""
    gives_tokens: bool = False
    """Returns rewards by token, such as one at the end of each turn."""

    @staticmethod
    def combine(rewards: Iterable[object]) -> RewardNeeds:
        """Return the needs of a reward that calls these, without their `columns`, which name fields
        of each."""
        members = [needs_of(reward, RewardNeeds) for reward in rewards]
        return RewardNeeds(**_of_any(RewardNeeds, members, without=("columns",)))


@dataclass(frozen=True, kw_only=True)
class JudgeNeeds:
    """Declarations of a judge."""

    answer: bool = False
    """The gold answer of each prompt."""
    responses: bool = False
    """Records of type `Response` where they are known, which tell that a text was truncated; other
    judges get the texts alone."""


@dataclass(frozen=True, kw_only=True)
class RolloutNeeds:
    """Declarations of a rollout."""

    ahead: bool = False
    """Samples the responses of the next iteration while this one is trained on: `generate` of a
    shallow copy is called in a background thread, but never during `sync`. It must not take part in
    collective operations, and `meta["iteration"]` of a response is the `iteration` it was given.
    Between `sync` and this call, a shallow copy with a smaller `max_tokens` samples a few
    responses, whose log-probabilities are compared with the policy's."""
    gives_entropies: bool = False
    """`extend` returns entropies, by which responses branch."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentNeeds:
    """Declarations of an environment."""

    stop: tuple[str, ...] = ()
    """Texts that end a turn, in addition to `rollout.stop`."""
    copies: bool = True
    """`copy.deepcopy` copies its episodes."""


@dataclass(frozen=True, kw_only=True)
class FrozenModelNeeds:
    """Declarations of a reference or a teacher."""

    copies_policy: bool = False
    """The network is a frozen copy of the policy."""
    group: bool = False
    """More than one response per prompt."""
    scores: bool = False
    """The scores of the responses, on which the teacher's prompt depends."""
    rate: float = 0.0
    """Step of the copy's weights towards the policy's after each iteration; 0: they stay."""


@dataclass(frozen=True, kw_only=True)
class AdapterNeeds:
    """Declarations of an adapter."""

    freezes: bool = False
    """The base weights, routers included, do not change."""


@dataclass(frozen=True, kw_only=True)
class ScheduleNeeds:
    """Declarations of a learning rate schedule."""

    kl: bool = False
    """The KL divergence between old and updated policy, `train/kl_old`."""


@dataclass(frozen=True, kw_only=True)
class OptimizerNeeds:
    """Declarations of an optimizer."""

    hidden: bool = False
    """Hidden matrices (`rlmods.training.networks.hidden_matrices`) in groups of their own, in which
    `hidden` is True."""


N = TypeVar(
    "N",
    AdvantageNeeds,
    RatioNeeds,
    TokenNeeds,
    KLNeeds,
    SamplingNeeds,
    PreferenceNeeds,
    RewardNeeds,
    JudgeNeeds,
    RolloutNeeds,
    EnvironmentNeeds,
    FrozenModelNeeds,
    AdapterNeeds,
    ScheduleNeeds,
    OptimizerNeeds,
)


def _of_any(kind: type[Any], members: Sequence[object], without: Sequence[str]) -> dict[str, Any]:
    """Return the flags of a kind of needs, True where a member has it, apart from the fields
    `without`."""
    flags = {}
    for name in (field.name for field in fields(kind)):
        if name not in without:
            flags[name] = any(getattr(needs, name) for needs in members)
    return flags


def needs_of(part: object, kind: type[N]) -> N:
    """Return the declarations of a part of this kind: the defaults if it has none.

    Raises:
        UserError: `needs` is of another type.
    """
    declared = getattr(part, "needs", None)
    if declared is None:
        return kind()
    if not isinstance(declared, kind):
        name = kind.__name__
        raise UserError(
            f"{type(part).__name__}.needs is {declared!r}: write needs = {name}(...), from "
            "rlmods.needs"
        )
    return declared
