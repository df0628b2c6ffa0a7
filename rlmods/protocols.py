"""Protocols of the parts. They are structural: a plugin needs no base class. Types of tensors, such
as `TokenFloats` for floats [N, T], are defined in `rlmods.types`. A part declares what it needs
from the loop in its attribute `needs` (`rlmods.needs`).

Any part may also be a `Controller`, which changes during training and is part of the checkpoint.
Protocols named after a verb (`ChecksPolicy`) are optional methods of other protocols' parts.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rlmods.needs import JudgeNeeds, needs_of
from rlmods.types import (
    Credit,
    Graded,
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
    """Estimates advantages from rewards. `AdvantageNeeds` lists further arguments."""

    def __call__(
        self, rewards: TokenFloats, mask: TokenMask, group: RowInts, values: TokenFloats | None
    ) -> Credit: ...


@runtime_checkable
class BatchAdvantage(Protocol):
    """An estimator that normalises over the whole batch: `__call__` is the composition of two
    methods. The loop calls `estimate` on all sampled rows, and `normalize` on the rows that an
    iteration trains on: after filters, over all ranks."""

    def estimate(
        self, rewards: TokenFloats, mask: TokenMask, group: RowInts, values: TokenFloats | None
    ) -> Credit:
        """Return the advantages before normalisation, given the arguments of `__call__`."""

    def normalize(self, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return the final advantages."""


@runtime_checkable
class Ratio(Protocol):
    """Maps log(pi / pi_old) and advantages to the objective of each token, which is maximised.
    `RatioNeeds` lists further arguments."""

    def __call__(
        self, log_ratio: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> Surrogate: ...


@runtime_checkable
class KL(Protocol):
    """Estimates the KL divergence from the reference per token, unscaled, from the
    log-probabilities of the sampled tokens, or of the whole vocabulary (`KLNeeds`)."""

    coefficient: float
    """Weight of the penalty."""
    where: str
    """"loss": added to the loss. "reward": subtracted from the rewards."""

    def __call__(self, logprobs: TokenFloats, ref_logprobs: TokenFloats) -> TokenFloats: ...


@runtime_checkable
class Correction(Protocol):
    """Weights the objective of each token where the sampler's distribution (`behavior_logprobs`)
    differs from the trainer's in the iteration that graded the row (`old_logprobs`), as with
    another engine, a truncated distribution, or weights of an earlier iteration. The weights carry
    no gradient. None: no weights."""

    def __call__(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> ImportanceWeights | None: ...


@runtime_checkable
class Tokens(Protocol):
    """Selects the tokens whose objective is trained, from the log-probabilities of the current
    policy, without a gradient. None: all. `TokenNeeds` lists further arguments and when it is
    called. The others stay in the denominators of the loss. Entropy bonus and KL are of all
    tokens."""

    def __call__(
        self, logprobs: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> TokenMask | None: ...


@runtime_checkable
class KeepsOthers(Protocol):
    """A selection after which the tokens that are not selected have an objective too; without this
    method, it is 0."""

    def others(self, objective: TokenFloats, log_ratio: TokenFloats) -> TokenFloats:
        """Return the objective of tokens that are not selected, given the objective of the ratio
        and log(pi / pi_old)."""
        ...


@runtime_checkable
class Aggregation(Protocol):
    """Reduces values per token to a scalar. Additive: for fixed totals, f(a ++ b) == f(a) +
    f(b)."""

    def __call__(self, x: TokenFloats, mask: TokenMask, totals: Totals) -> Scalar: ...


@runtime_checkable
class Sampling(Protocol):
    """Selects responses to train on by their unshaped correctness (or total reward). A group
    without a selected row is rejected. A row that is not selected in a group that is kept counts in
    the baseline but not in the loss."""

    def __call__(self, scores: RowFloats, group: RowInts) -> RowMask: ...


@runtime_checkable
class Reward(Protocol):
    """Scores responses. Returns one float per response, None where it abstains, or `Scores` with
    more information."""

    def __call__(self, responses: Sequence[Response]) -> Scores | Sequence[float | None]: ...


@runtime_checkable
class Rollout(Protocol):
    """Samples responses, by default with temperature 1 and without truncation of the distribution.
    A rollout is a dataclass, because validation samples with a copy that has other settings. Its
    optional members are `Truncates`, `ReportsTokens` and `ChecksPolicy`."""

    temperature: float
    """Divides the logits; 0 is greedy."""

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major."""

    def sync(self, policy: Any, *, iteration: int) -> None:
        """Load the weights of `policy` (`rlmods.policy.Policy`); responses generated
        afterwards are sampled from them."""


@runtime_checkable
class Truncates(Protocol):
    """A rollout that can truncate the distribution."""

    top_p: float
    """Sample among the fewest tokens whose probability reaches this. 1: among all."""
    top_k: int
    """Sample among this many most probable tokens. 0: among all."""


def truncates(rollout: object) -> bool:
    """Return True if a rollout samples from a truncated distribution."""
    return isinstance(rollout, Truncates) and (rollout.top_p < 1 or rollout.top_k > 0)


@runtime_checkable
class ReportsTokens(Protocol):
    """A rollout that reports its progress."""

    on_tokens: Callable[[int, int, int], None] | None
    """Called with the finished rows, all rows, and the tokens sampled so far in a call of
    `generate`."""


@runtime_checkable
class ChecksPolicy(Protocol):
    """A rollout with a check of the policy, which is made when training is set up."""

    def check_policy(self, policy: Any) -> None:
        """Raise UserError for a policy that it cannot sample from."""


@dataclass(frozen=True)
class RunSize:
    """What an engine with its own weights has to know about a run."""

    precision: str
    """`trainer.precision`."""
    num_rows: int
    """Responses of an iteration on this rank."""
    longest_row: int
    """Tokens of the longest prompt and the longest response, in training and validation."""
    reserved_bytes: float
    """Memory of this rank's GPU that training takes beside what it holds already; 0 without a
    GPU."""


@runtime_checkable
class FitsRun(Protocol):
    """A rollout with settings that depend on the run."""

    def fit_run(self, policy: Any, run: RunSize) -> None:
        """Choose the settings that are null, before the first `sync`."""


@runtime_checkable
class ChecksPrompt(Protocol):
    """A reward or environment with a check of the data."""

    def check_prompt(self, prompt: Prompt) -> None:
        """Raise ValueError for a prompt that it cannot use."""


@runtime_checkable
class Episode(Protocol):
    """One conversation of a policy with an environment. It holds the state, and plain data only, so
    that `copy.deepcopy` copies it at any turn, unless `EnvironmentNeeds.copies` is False."""

    prompt: Prompt
    """What the policy reads first, chat messages or plain text, with the id and pass of the prompt
    that the episode began with."""
    tools: Sequence[Mapping[str, Any]]
    """JSON schemas of tools, which a chat template shows to the policy; empty if there are none."""

    def reply(self, turn: Turn) -> Reply:
        """Return what follows a turn of the policy: messages that it observes, or the end. It is
        called in a thread, once for each turn in their order. Also a truncated turn (`turn.finish
        == "length"`) is passed, but ends the episode whatever the reply."""


@runtime_checkable
class EndsEarly(Protocol):
    """An episode that acts when a limit ends the response, and not a reply."""

    def end(self) -> Reply:
        """Return a reply whose reward and calls are added to the last turn. It is called in a
        thread."""


@runtime_checkable
class Environment(Protocol):
    """What the policy converses with. Its optional methods are `ChecksPrompt` and
    `BindsPolicy`."""

    max_turns: int
    """Maximum number of turns of the policy."""
    max_tokens: int
    """Maximum number of tokens of all turns and observations of a response."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Episode:
        """Begin an episode with a prompt of the data. Whatever is random in it is a function of
        parts of `key`, the seed, prompt id, occurrence, sample and iteration, so that a resumed run
        repeats it. Responses to one prompt are compared with each other: what the policy has to
        find out must not depend on the sample."""


@runtime_checkable
class BindsPolicy(Protocol):
    """An environment that depends on the policy."""

    def for_policy(self, policy: Any) -> Environment:
        """Return the environment for a policy, for example with the format of its chat
        template."""


@runtime_checkable
class Teacher(Protocol):
    """A model towards which the policy is trained."""

    demonstration: str | None
    """Column of the data that only the teacher sees; None if it sees no column."""

    @property
    def shows_more(self) -> bool:
        """True if the teacher's prompt shows what the policy's does not."""

    def __call__(self, policy: Any) -> Any:
        """Return the network (`rlmods.policy.Policy`), given the policy; None if it is not in this
        process."""

    def prompt(self, prompt: Prompt) -> Prompt:
        """Return the prompt as the teacher sees it, without what it shows of responses."""

    def prompts(self, graded: Graded) -> Sequence[Prompt | None]:
        """Return the prompt that the teacher sees before each response; None: it does not score
        it."""


@runtime_checkable
class ReturnsLogprobs(Protocol):
    """A teacher without a network in this process."""

    def logprobs(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Return the log-probabilities of the response tokens of rows (prompt ids, response
        ids)."""


@runtime_checkable
class Judge(Protocol):
    """Compares two responses to a prompt: 1.0 if the first is better, 0.0 if the second is, 0.5 for
    a tie, None for no verdict. Its optional members are `ComparesPairs` and `Counts`."""

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None: ...


Candidate = Response | str
"""A response to judge; a bare text is a finished response."""


@runtime_checkable
class ComparesPairs(Protocol):
    """A judge that compares many pairs at once."""

    def compare(self, pairs: Sequence[tuple[Prompt, Candidate, Candidate]]) -> list[float | None]:
        """Return one verdict per pair."""


@runtime_checkable
class Counts(Protocol):
    """A judge that counts events, such as requests and lost questions."""

    counts: Counter[str]
    """Running totals by event."""


def counts_of(judge: object) -> Counter[str]:
    """Return a copy of the counts of a judge; empty if it counts nothing."""
    return Counter(judge.counts) if isinstance(judge, Counts) else Counter()


def compare(
    judge: Judge, pairs: Sequence[tuple[Prompt, Candidate, Candidate]]
) -> list[float | None]:
    """Return one verdict per pair, from one call of `judge.compare(pairs)` if the judge has it,
    else from one call per pair.

    Raises:
        ValueError: a verdict outside 0 to 1.
    """
    accepted: list[Any] = list(pairs)
    if not needs_of(judge, JudgeNeeds).responses:
        accepted = []
        for prompt, *candidates in pairs:
            texts = [x.text if isinstance(x, Response) else x for x in candidates]
            accepted.append((prompt, *texts))
    if isinstance(judge, ComparesPairs):
        verdicts = judge.compare(accepted)
    else:
        verdicts = [judge(*pair) for pair in accepted]
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
