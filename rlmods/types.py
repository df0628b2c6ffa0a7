"""Types of tensors, and records in the order of the data flow: Prompt -> Response -> Scores ->
Experience -> (Credit, Surrogate, Totals).

Shapes: N responses (G to each prompt), T token slots (prompt, response and right padding), P
prompts with K candidate responses each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from rlmods.errors import suggest

TokenFloats = Float[Tensor, "N T"]
"""A number for each token slot of each response."""
TokenInts = Int[Tensor, "N T"]
TokenMask = Bool[Tensor, "N T"]
TermFloats = Float[Tensor, "N T K"]
"""A number for each token of each response, from each of K terms."""
RoutedExperts = Int[Tensor, "N T L k"]
"""The k experts of each token at each of L routers."""
RowFloats = Float[Tensor, " N"]
"""A number for each response, a row of the batch."""
RowInts = Int[Tensor, " N"]
RowMask = Bool[Tensor, " N"]
CandidateFloats = Float[Tensor, "P K"]
"""A number for each candidate response to each prompt."""
CandidateInts = Int[Tensor, "P K"]
CandidateMask = Bool[Tensor, "P K"]
PairFloats = Float[Tensor, "P K K"]
"""A number for each ordered pair of candidates."""
PairMask = Bool[Tensor, "P K K"]
PromptFloats = Float[Tensor, " P"]
PromptInts = Int[Tensor, " P"]
Scalar = Float[Tensor, ""]

Finish = Literal["stop", "length"]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of chat turns."""
OTHER_ROLES = {
    "model": "assistant",
    "gpt": "assistant",
    "human": "user",
    "function": "tool",
    "ipython": "tool",
}
"""Roles of other formats, and which of `ROLES` they are."""


def describe_unknown_role(role: str) -> str:
    """Return the error text about a role that is not one of `ROLES`."""
    known = OTHER_ROLES.get(role.strip().lower())
    hint = f"write {known!r} in its place" if known else suggest(role, ROLES)
    return f"the role {role[:40]!r} is not one of {', '.join(ROLES)}; {hint}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the data set."""

    id: str
    """Unique within its data set. With the seed it determines what is sampled, so resuming needs no
    generator state."""
    text: str | None = None
    """Plain text, passed to the model unchanged. Exactly one of `text` and `messages` is set."""
    messages: Sequence[Mapping[str, str]] | None = None
    """Chat turns, `{"role": ..., "content": ...}` with one of `ROLES`, rendered with the
    tokenizer's chat template."""
    answer: str | None = None
    """Gold answer; None if the data has none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """All other columns of the data set."""
    time: int = 0
    """Number of completed passes over the data. It enters the sampling seed, so each pass draws
    different samples."""
    source: str | None = None
    """Name of the data set that the prompt comes from, in a mixture of several; None for a single
    one. Metrics are also logged by it."""
    location: str | None = field(default=None, compare=False, repr=False)
    """File and line of the row, for error messages; None if it is not from a file."""

    @property
    def name(self) -> str:
        """Id and location of the prompt, for error messages."""
        where = "" if self.location is None else f" ({self.location})"
        return f"prompt {self.id}{where}"


@dataclass(frozen=True, slots=True)
class Branch:
    """Start of a response that continues a prefix of another response to the same prompt."""

    parent: int
    """Index of the other response among the prompt's G responses."""
    shared: int
    """Number of leading tokens, sampled and observed, taken from the parent."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in a turn of the policy."""

    name: str
    """Name of the tool; "" if the call is malformed and names none."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name; empty if the call is malformed."""
    result: str = ""
    """Text that the policy observed: the result, or the error in words."""
    error: str | None = None
    """Kind of failure: "malformed" (no call could be read), "unknown", "timeout" or "error" of a
    tool, "crash" of the environment, which ended the response; None for a result."""
    seconds: float = 0.0
    """Wall time of the call."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the policy in a response of several turns."""

    start: int
    """Index in `Response.tokens` of its first token."""
    stop: int
    """Index after its last token, EOS included. The tokens from here to the `start` of the next
    turn are the observation."""
    text: str = ""
    """Decoded tokens, without EOS and other special tokens."""
    raw: str = ""
    """Decoded tokens with special tokens, without the EOS token that ended the turn."""
    finish: Finish = "stop"
    """"stop": ended by an EOS token or a stop string. "length": truncated by a token limit."""
    reward: float | None = None
    """Reward of the environment for this turn; None if it gave none."""
    calls: Sequence[ToolCall] = ()
    """Calls of tools, in their order."""
    observed: Sequence[Mapping[str, str]] = ()
    """Chat messages of the environment that the policy observed after the turn."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment returns for a turn of the policy."""

    messages: Sequence[Mapping[str, str]] | None = None
    """Chat messages that the policy observes next, `{"role": ..., "content": ...}`; None ends the
    episode."""
    reward: float | None = None
    """Reward of the turn; None if there is none."""
    calls: Sequence[ToolCall] = ()
    """Calls of tools that the turn made."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """How a program that conversed with the policy by requests ended (`environment=agent`)."""

    requests: int = 0
    """Number of requests that were answered."""
    cuts: int = 0
    """Number of requests after the first that begin with other messages than any before."""
    branches: int = 0
    """Number of turns beside another one that continues the same messages."""
    refused: int = 0
    """Number of requests that were refused."""
    failure: Literal["crash", "timeout", "silent"] | None = None
    """"crash": an exception or exit status. "timeout": no request in time. "silent": an end without
    a request. None: an end after a request."""
    error: str = ""
    """The failure in one line."""
    failure_reward: float | None = None
    """Reward of the response if the program failed; None: it is not scored."""


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response to a prompt. With an environment: turns of the policy, and the
    observations between them."""

    prompt: Prompt
    prompt_tokens: Sequence[int] = ()
    """Token ids of the prompt as given to the model."""
    tokens: Sequence[int] = ()
    """Sampled token ids, EOS included, and ids of observations. The loss uses these ids; they are
    never encoded again."""
    behavior_logprobs: Sequence[float] = ()
    """Log-probability of each token under the distribution it was drawn from (temperature and
    truncation included); 0 for observations."""
    text: str = ""
    """Decoded sampled tokens of the last turn, without EOS and other special tokens. Rewards read
    it."""
    finish: Finish = "stop"
    """"stop": ended by an EOS token or a stop string. "length": truncated by a limit on tokens or
    turns."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`sample`: index among the prompt's G responses. `iteration`: iteration of the policy that
    sampled it. `decisions`: decisions about branches, if there is a rule
    (`rlmods.branching.entropy.Decision`). `out_of_turns`: True if a limit on turns ended it."""
    branch: Branch | None = None
    """Where the response branches off from another one; None if it was sampled from the prompt
    on."""
    mask: Sequence[bool] | None = None
    """True for each token that the policy sampled, False for observed tokens; None: all are
    sampled."""
    turns: Sequence[Turn] = ()
    """The turns of the policy, if an environment replies to them; empty for a response of one
    turn."""
    cuts: Sequence[int] = ()
    """Increasing indices in `tokens` at which the context begins anew, because the chat template
    writes earlier turns in another way once an observation follows. From a cut on, `tokens` are the
    whole conversation, prompt included, as the template writes it then, and no token depends on
    what is before the cut. The parts between cuts are the segments of the response."""
    session: SessionRecord | None = None
    """How the program ended that sent the requests; None without one."""

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return len(self.tokens) if self.mask is None else sum(self.mask)

    @property
    def overlong(self) -> bool:
        """True if a limit on tokens truncated it, not a limit on turns."""
        return self.finish == "length" and not self.meta.get("out_of_turns", False)

    @property
    def in_tree(self) -> bool:
        """True if the response is part of a tree of branches."""
        return self.branch is not None or "decisions" in self.meta

    @property
    def num_new(self) -> int:
        """Number of tokens that the policy sampled for this response alone."""
        shared = 0 if self.branch is None else self.branch.shared
        return len(self.tokens) - shared if self.mask is None else sum(self.mask[shared:])

    @property
    def num_shared_calls(self) -> int:
        """Number of calls of tools taken, with their results, from the parent."""
        shared = 0 if self.branch is None else self.branch.shared
        return sum(len(turn.calls) for turn in self.turns if turn.stop <= shared)

    @property
    def longest_turn(self) -> int:
        """Largest number of tokens that the policy sampled in a turn."""
        return max((turn.stop - turn.start for turn in self.turns), default=self.num_sampled)


def as_response(prompt: Prompt, candidate: Response | str) -> Response:
    """Return a candidate as a response. A bare text is a finished response with
    unknown tokens."""
    return candidate if isinstance(candidate, Response) else Response(prompt, text=candidate)


@dataclass(frozen=True, slots=True)
class Scores(Sequence[float | None]):
    """Rewards of N responses, and the sequence of the N totals."""

    values: Sequence[float | None]
    """Reward of each response; None (unscored): the row is left out of baseline and loss."""
    correct: Sequence[bool | None] | None = None
    """Unshaped correctness, if the reward reports it. Used for accuracy and by dynamic sampling."""
    monitored: bool = False
    """`correct` is logged only; sampling filters use `values`."""
    terms: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Score of each term before weighting, by name."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of grading failures: `<term>/timeouts`, `<term>/errors`."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Additional columns of the sample log, N values each."""
    tokens: Sequence[Sequence[float | None]] | None = None
    """Reward of each response token, for rewards by step; None on tokens that end no step. `values`
    are their sums."""
    step_tokens: Sequence[Sequence[float | None]] | None = None
    """`tokens` without the terms that give one reward per response; None if no term gives rewards
    by token."""
    outcomes: Sequence[float | None] | None = None
    """Weighted sum of the terms that give one reward per response, if others give rewards by token;
    else None."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of the terms whose weighted sum `values` is; empty if the reward has no terms."""
    members: Mapping[str, Scores] = field(default_factory=dict)
    """Scores of each term before weighting, by name, also of weight 0; empty without terms."""

    @overload
    def __getitem__(self, index: int) -> float | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float | None]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float | None] | None:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)


R = TypeVar("R", bound="Rows")


@dataclass(frozen=True, slots=True)
class Graded:
    """Graded responses, as a teacher reads them."""

    responses: Sequence[Response]
    group: Sequence[int]
    """Id of the group of each response."""
    correct: Sequence[float]
    """Correctness of each response, or its total reward if the reward reports none; NaN:
    unscored."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Columns of the sample log that the reward returned."""


class Rows:
    """Base of frozen dataclasses whose fields are tensors of equal length N."""

    __slots__ = ()
    lengths: Tensor
    """Number of tokens of each row, or of each of its responses."""

    def select(self: R, rows: Tensor) -> R:
        """Return the rows selected by an index [n] or a bool mask [N]."""
        if rows.dtype == torch.bool:  # once for all fields: the host waits for the number of rows
            rows = rows.nonzero().squeeze(1)
        return self._map(lambda x: x[rows])

    def to(self: R, device: torch.device | str) -> R:
        """Move all tensors to a device."""
        return self._map(lambda x: x.to(device))

    def first_columns(self: R, width: int) -> R:
        """Return the rows without the columns from `width` on."""
        raise NotImplementedError

    def trim(self: R) -> R:
        """Return the rows without the columns that are padding in all of them."""
        return self.first_columns(int(self.lengths.max()) if len(self.lengths) else 0)

    def split(self: R, chunks: Sequence[Tensor]) -> Iterator[R]:
        """Yield the rows of each chunk of indices, trimmed. The host waits for the device once."""
        widths = torch.stack([self.lengths[rows].max() for rows in chunks]).tolist()
        for rows, width in zip(chunks, widths, strict=True):
            yield self.select(rows).first_columns(width)

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors by field name, the form stored in checkpoints."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def _map(self: R, change: Callable[[Tensor], Tensor]) -> R:
        changed: dict[str, Any] = {
            name: None if x is None else change(x) for name, x in self.tensors().items()
        }
        return type(self)(**changed)


def equal_columns(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    """Return the number of tokens that rows [..., T] of these lengths [...] both begin with."""
    common = (a != b).cumsum(-1).eq(0).sum(-1)
    return torch.minimum(common, lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience(Rows):
    """Scored responses as right-padded tensors, the input of optimizer steps. Column t of every [N,
    T] tensor belongs to token t."""

    tokens: TokenInts
    """Prompt, response, then padding ids (never read)."""
    mask: TokenMask
    """True on tokens with loss: the sampled ones, EOS included, without observations.
    Where it is False, slots may hold any value."""
    lengths: RowInts
    """Number of prompt and response tokens; columns from there on are padding."""
    rewards: TokenFloats
    """Reward of each token. An outcome reward is on the last sampled token."""
    old_logprobs: TokenFloats
    """log pi_old under the trainer's parameters of iteration `policy_version`; not read where
    `on_policy` is True."""
    on_policy: RowMask
    """True: pi_old is the current policy, the ratio exactly 1, and the loss ignores `old_logprobs`.
    True from collation until they are stored, and again in the first optimizer step of the
    iteration that graded the row. It says nothing about the sampler."""
    behavior_logprobs: TokenFloats
    """Log-probabilities reported by the sampler. Their distance from `old_logprobs` is logged, and
    `correction` weights the objective by it."""
    advantages: TokenFloats
    """Advantage of each token."""
    policy_version: RowInts
    """Iteration that graded the row, whose policy is pi_old. Older for buffered and replayed
    rows."""
    sampler_version: RowInts
    """Iteration of the policy that sampled the row; one less if it was sampled ahead."""
    group: RowInts
    """Id of the prompt occurrence. Rows with equal ids form a group, in any order."""
    score: RowFloats | None = None
    """Score by which `sampling` selects: correctness, or the total reward if the reward reports
    none. None unless `algo.positive_coefficient` reads it."""
    ref_logprobs: TokenFloats | None = None
    """log pi_ref of the frozen reference; None without a reference."""
    teacher_logprobs: TokenFloats | None = None
    """Log-probabilities of the teacher, after its own prompt; NaN on tokens that it does not score.
    None without a teacher."""
    values: TokenFloats | None = None
    """V(s_t), computed at the token before t."""
    returns: TokenFloats | None = None
    """Regression target of the critic."""
    steps: TokenMask | None = None
    """True on the last token of each graded step; None if the reward is one number per response."""
    origin: TokenInts | None = None
    """Number within the group of the response that sampled each token: rows share the token in a
    column if and only if they have the same origin there. None without branches."""
    cuts: TokenMask | None = None
    """True on the first token of each segment but the first (`Response.cuts`); None without any."""
    turn: TokenInts | None = None
    """Index of the policy's turn at each token of the response, observations after the turn
    included; -1 on prompt and padding. None unless the estimator reads it
    (`AdvantageNeeds.turns`)."""
    state: TokenInts | None = None
    """Key of the observation before the token's turn: equal for equal observations; 0 before the
    first turn. None where `turn` is None."""
    term_advantages: TermFloats | None = None
    """Advantages of each term of advantage=sum before weighting, NaN on the responses that its
    reward leaves unscored; None for other estimators."""
    trained: TokenMask | None = None
    """True on the tokens that the group `tokens` selected for this optimizer step; None before, or
    if it selects within rows."""
    routed_experts: RoutedExperts | None = None
    """Experts chosen by each router at each token for `old_logprobs` (int16); -1: not computed yet.
    None for dense models."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def forward_tokens(self) -> RowInts:
        """Number of tokens in a forward of the row alone, its segments padded to the longest."""
        if self.cuts is None:
            return self.lengths
        columns = torch.arange(self.cuts.shape[1], device=self.cuts.device).expand_as(self.cuts)
        first = torch.where(self.cuts, columns, 0).cummax(1).values
        longest = torch.where(columns < self.lengths[:, None], columns - first + 1, 0).amax(1)
        return longest * (1 + self.cuts.sum(1))

    @property
    def loss_counts(self) -> Int[Tensor, " 2"]:
        """Number of tokens and of sequences with loss: this rank's part of `Totals`."""
        return torch.stack([self.mask.sum(), self.mask.any(1).sum()])

    def computed_tokens(self, order: RowInts) -> tuple[RowInts, RowInts]:
        """Return the number of tokens that a forward of packed rows (`rlmods.policy.packing`)
        computes for each row of this order: for the row alone, and after the row before it, with
        the tokens that both begin with only once if they are of a group."""
        alone = self.forward_tokens[order]
        if self.cuts is not None:
            return alone, alone
        group = self.group[order]
        tokens = self.tokens[order]
        common = equal_columns(tokens[1:], tokens[:-1], torch.minimum(alone[1:], alone[:-1]))
        added = alone.clone()
        added[1:] -= torch.where(group[1:] == group[:-1], common, 0)
        return alone, added

    def first_columns(self, width: int) -> Experience:
        return self._map(lambda x: x[:, :width] if x.ndim > 1 else x)

    def without_loss(self) -> Experience:
        """Return rows of the same shape with an empty mask."""
        return replace(self, mask=torch.zeros_like(self.mask))

    @staticmethod
    def concat(parts: Sequence[Experience]) -> Experience:
        """Concatenate rows, padded to the widest. An optional field stays only if all parts have
        it, apart from `origin` and `cuts`: rows without them share no tokens and have no cuts.
        Parts without rows are left out: their width would change how sums over the batch round."""
        parts = [part for part in parts if len(part)] or parts[:1]
        width = max(part.tokens.shape[1] for part in parts)
        columns: list[dict[str, Tensor | None]] = [part.tensors() for part in parts]
        has_branches = any(part.origin is not None for part in parts)
        has_cuts = any(part.cuts is not None for part in parts)
        for part, tensors in zip(parts, columns, strict=True):
            if has_branches and part.origin is None:
                own = torch.arange(len(part), device=part.tokens.device)
                tensors["origin"] = own[:, None].expand(part.tokens.shape)
            if has_cuts and part.cuts is None:
                tensors["cuts"] = torch.zeros_like(part.mask)
        joined: dict[str, Any] = {}
        for name in columns[0]:
            fill = -1 if name == "routed_experts" else 0
            padded = [widen(tensors[name], width, fill) for tensors in columns]
            present = [x for x in padded if x is not None]
            joined[name] = torch.cat(present) if len(present) == len(parts) else None
        return Experience(**joined)


@overload
def widen(x: Tensor, width: int, fill: int = 0) -> Tensor: ...
@overload
def widen(x: Tensor | None, width: int, fill: int = 0) -> Tensor | None: ...
def widen(x: Tensor | None, width: int, fill: int = 0) -> Tensor | None:
    """Pad the columns of a tensor [N, T, ...] on the right; others stay."""
    if x is None or x.ndim == 1:
        return x
    return pad(x, (0, 0) * (x.ndim - 2) + (0, width - x.shape[1]), value=fill)


@dataclass(frozen=True, slots=True)
class Credit:
    """Output of an advantage estimator."""

    advantages: TokenFloats
    """Advantage of each token; 0 where the mask is False."""
    returns: TokenFloats | None = None
    """Regression target of the critic; None from estimators without a critic."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Output of a `Ratio`."""

    objective: TokenFloats
    """Objective of each token, to be maximised."""
    clipped: TokenMask
    """True where clipping determined the objective and removed the gradient, before any
    averaging."""


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Output of a `Correction`."""

    weights: TokenFloats
    """Factor of each token's objective, without a gradient; 1 in masked slots."""
    outside: TokenMask
    """True where the importance ratio is out of bounds, so that its weight is another number."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Loss denominators of one optimizer step, summed over all its microbatches on all ranks. At
    least 1 each."""

    tokens: Tensor | float | int
    """Number of tokens with a true mask; tokens that `tokens` or `correction` leave out count."""
    sequences: Tensor | float | int
    """Number of responses with at least one such token."""
