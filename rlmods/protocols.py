"""Protocols of the parts. They are structural: a plugin needs no base class and no import from this
package. Types of tensors, such as `TokenFloats` for floats [N, T], are defined in `rlmods.types`.

Any part may also be a `Controller`, which changes during training and is part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rlmods.types import (
    Credit,
    ImportanceWeights,
    Prompt,
    Reply,
    Response,
    RowFloats,
    RowInts,
    RowMask,
    Scalar,
    Scores,
    Surrogate,
    TokenFloats,
    TokenMask,
    Totals,
    Turn,
)


@runtime_checkable
class Advantage(Protocol):
    """Estimates advantages from rewards. Class attributes declare what it needs:

    - `needs_values = True`: a critic.
    - `needs_group = True`: more than one response per prompt.
    - `needs_greedy = True`: the reward of the greedy response to each prompt, passed as `values` on
      every token of the prompt's responses.
    - `needs_steps = True`: rewards by step, and the argument `steps`: bool [N, T], True where a
      step ends.
    - `needs_nonnegative = True`: rewards of at least 0.
    - `needs_outcomes = True`, in addition: the argument `outcomes` [N], the rewards per response,
      which `rewards` then does not contain (NaN: none).
    - `needs_branches = True`: the argument `origin`, int [N, T] or None: `Experience.origin`, which
      tokens the rows of a group share.
    - `needs_terms = True`: the arguments `terms` [N, K], the scores of the reward's terms (NaN:
      abstained), and `weights` [K].
    - `reads_correctness = True`: `rewards` are the scores by which `sampling` selects (unshaped
      correctness, or the total reward if the reward does not report it), without scaling and KL.

    and what it does with them:

    - `normalizes_rewards = True`: it divides by a statistic of the rewards of a group, such as
      their standard deviation. A KL in the reward would change that divisor, so it is subtracted
      afterwards: A_t - beta * (KL_t + KL_{t+1} + ...).
    - `credit`: "response" (default), one advantage per response; "token", the tokens of a response
      may have different advantages; "reward_to_go", they differ only if single tokens are rewarded,
      as by a KL in the reward.

    An estimator that normalises over the whole batch declares `normalizes_batch = True` and has two
    more methods, of which `__call__` is the composition: `estimate`, with the arguments of
    `__call__`, returns the `Credit` before normalisation, and `normalize(advantages, mask)` the
    final advantages. The loop calls `estimate` on all sampled rows and `normalize` on those that an
    iteration trains on: after filters, over all ranks."""

    def __call__(
        self, rewards: TokenFloats, mask: TokenMask, group: RowInts, values: TokenFloats | None
    ) -> Credit: ...


@runtime_checkable
class Ratio(Protocol):
    """Maps log(pi / pi_old) and advantages to the objective of each token, which is maximised. An
    attribute `level` other than `"token"` declares that tokens are not weighted by their own
    ratios, so that changed expert routing has little effect; `"sequence"` also that all tokens of a
    response need the same advantage. An attribute `temperature` declares the temperature of the
    log-probabilities, if it is not that of the rollout. `needs_old_logprobs = True` declares the
    further argument `old_logprobs` [N, T]: log pi_old of each token."""

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate: ...


@runtime_checkable
class KL(Protocol):
    """Estimates the KL divergence from the reference per token, unscaled, from the
    log-probabilities of the sampled tokens. With the class attribute `needs_distributions = True`
    it is called, with `where = "loss"`, with those of all tokens of the vocabulary instead: two
    tensors [n, V] at n tokens, result [n]. `needs_reference = False`: no reference is loaded."""

    coefficient: float
    """Weight of the penalty."""
    where: str
    """"loss": added to the loss. "reward": subtracted from the rewards."""

    def __call__(self, logprobs: TokenFloats, ref_logprobs: TokenFloats) -> TokenFloats: ...


@runtime_checkable
class Correction(Protocol):
    """Weights the objective of each token where the sampler's distribution (`behavior_logprobs`) is
    not that of the trainer at the start of the iteration (`old_logprobs`), as with another engine,
    a truncated distribution, or weights of an earlier iteration. The weights carry no gradient.
    None: no weights."""

    def __call__(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> ImportanceWeights | None: ...


@runtime_checkable
class Aggregation(Protocol):
    """Reduces values per token to a scalar. Additive: for fixed totals, f(a ++ b) == f(a) +
    f(b)."""

    def __call__(self, x: TokenFloats, mask: TokenMask, totals: Totals) -> Scalar: ...


@runtime_checkable
class Sampling(Protocol):
    """Selects responses to train on by their unshaped correctness (or total reward). A group
    without a selected row is rejected. A row that is not selected in a group that is kept counts in
    the baseline but not in the loss. Class attributes: `needs_group = True`, it compares the
    responses to one prompt; `selects_rows = True`, it selects the best responses of a group and not
    whole groups."""

    def __call__(self, scores: RowFloats, group: RowInts) -> RowMask: ...


@runtime_checkable
class Reward(Protocol):
    """Scores responses. Returns one float per response, None where it abstains, or `Scores` with
    more information. Class attributes: `needs_answer = True`, it reads the gold answer;
    `needs_group = True`, it compares the responses to one prompt; `gives_steps = True`, it returns
    one reward per step in `Scores.tokens`, which must not be added up, as their sum grows with the
    number of steps; `runs_code = True`, it runs the response as a program; `needs_columns`, names
    of its settings that name a column of the data, which at least one row must have."""

    def __call__(self, responses: Sequence[Response]) -> Scores | Sequence[float | None]: ...


@runtime_checkable
class Rollout(Protocol):
    """Samples responses, by default with temperature 1 and without truncation of the distribution.
    An optional method `check_policy(policy)` is called when training is set up, and raises
    UserError for a policy from which it cannot sample.

    For an environment of several turns it also has `extend(contexts, *, iteration)`, which returns
    a `Continuation` of each `Context` for each of its samples (`rlmods.rollout.encoding`), and
    `max_tokens` is the limit of a turn. An optional context manager `sampling()` is entered around
    all turns of a call of `generate`; of sharded weights, all ranks enter it, and then extend each
    as often as it needs.

    With an attribute `ahead = 1`, `generate` of a shallow copy is called in a background thread
    while the main thread trains, but never during `sync`. It must not take part in collective
    operations, and `meta["iteration"]` of a response is the `iteration` it was given. A checkpoint
    keeps the items of `meta` whose values consist of plain Python types. Between `sync` and this
    call, a shallow copy with a smaller `max_tokens` samples a few responses, whose
    log-probabilities are compared with the policy's."""

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major."""
        ...

    def sync(self, policy: Any, *, iteration: int) -> None:
        """Update the weights to those of `policy` (`rlmods.policy.Policy`); responses generated
        afterwards are sampled from them."""
        ...


@runtime_checkable
class Episode(Protocol):
    """One conversation of a policy with an environment. It holds the state, and plain data only, so
    that `copy.deepcopy` copies it at any turn; an environment whose episodes cannot be copied
    declares `copies = False`.

    Optional: `end()`, called in a thread if a limit ends the response and not a reply. It returns a
    `Reply`, whose reward and calls are added to those of the last turn."""

    prompt: Prompt
    """What the policy reads first, chat messages or plain text. Its id and pass are those of the
    prompt that the episode began with."""
    tools: Sequence[Mapping[str, Any]]
    """JSON schemas of tools, which a chat template shows to the policy; empty if there are none."""

    def reply(self, turn: Turn) -> Reply:
        """Return what follows a turn of the policy: messages that it observes, or the end. It is
        called in a thread, once for each turn in their order. Also a truncated turn (`turn.finish
        == "length"`) is passed, but ends the episode whatever the reply."""
        ...


@runtime_checkable
class Environment(Protocol):
    """What the policy converses with. Class attributes: `copies = False`, episodes cannot be
    copied; `needs_answer = True`, it reads the gold answer. Optional: `check_prompt(prompt)` raises
    ValueError for a prompt of the data with which no episode can begin; `for_policy(policy)`
    returns the environment for a policy, for example with the format of its chat template; `stop`
    has texts that end a turn, beside those of `rollout.stop`."""

    max_turns: int
    """Maximum number of turns of the policy."""
    max_tokens: int
    """Maximum number of tokens of all turns and observations of a response."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Episode:
        """Begin an episode with a prompt of the data. Whatever is random in it is a function of
        parts of `key`, the seed, prompt id, occurrence, sample and iteration, so that a resumed run
        repeats it. Responses to one prompt are compared with each other: what the policy has to
        find out must not depend on the sample."""
        ...


@runtime_checkable
class Teacher(Protocol):
    """A model towards which the policy is trained. `copies_policy`: True if its network is a frozen
    copy of the policy. A teacher without a network also has `logprobs(rows)`, which returns the
    log-probabilities of the response tokens of rows (prompt ids, response ids)."""

    demonstration: str | None
    """Column of the data that only the teacher sees; None if it sees the policy's prompt."""
    copies_policy: bool

    def __call__(self, policy: Any) -> Any:
        """Return the network (`rlmods.policy.Policy`), given the policy; None if it is not in this
        process."""
        ...

    def prompt(self, prompt: Prompt) -> Prompt:
        """Return the prompt as the teacher sees it."""
        ...


@runtime_checkable
class Judge(Protocol):
    """Compares two responses to a prompt: 1.0 if the first is better, 0.0 if the second is, 0.5 for
    a tie, None for no verdict.

    A judge with the class attribute `accepts_responses = True` gets records of type `Response`
    where they are known, which tell that a text was truncated; other judges get the texts alone."""

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None: ...


Candidate = Response | str
"""A response to judge; a bare text is that of a finished response."""


def as_accepted(judge: Any, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return candidates in the form that the judge takes: unchanged, or their texts."""
    if getattr(judge, "accepts_responses", False):
        return candidates
    return [x.text if isinstance(x, Response) else x for x in candidates]


def compare(
    judge: Judge, pairs: Sequence[tuple[Prompt, Candidate, Candidate]]
) -> list[float | None]:
    """Return one verdict per pair, from one call of `judge.compare(pairs)` if the judge has it,
    else from one call per pair.

    Raises:
        ValueError: a verdict outside 0 to 1.
    """
    accepted: list[Any] = [
        (prompt, *as_accepted(judge, candidates)) for prompt, *candidates in pairs
    ]
    verdicts = (
        judge.compare(accepted)
        if hasattr(judge, "compare")
        else [judge(*pair) for pair in accepted]
    )
    for verdict in verdicts:
        if verdict is not None and not 0 <= verdict <= 1:
            raise ValueError(
                f"{type(judge).__name__} returned the verdict {verdict}: it must be 1.0, 0.5, "
                "0.0 or None"
            )
    return list(verdicts)


@runtime_checkable
class Controller(Protocol):
    """A part that changes during training, such as an adaptive coefficient or a running baseline.
    Resuming restores it exactly."""

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """Update with the metrics of the iteration, which are equal on all ranks."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
        ...
