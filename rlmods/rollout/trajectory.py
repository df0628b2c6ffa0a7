"""A response of several turns while it is sampled."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlmods.branching import Entropy
from rlmods.branching.entropy import Decision
from rlmods.policy.base import Policy
from rlmods.policy.conversation import Conversation
from rlmods.protocols import Episode
from rlmods.rollout.base import Context, Continuation, EncodedPrompt, without_eos
from rlmods.types import Branch, Finish, Prompt, Reply, Response, ToolCall, Turn


@dataclass(frozen=True)
class Limits:
    """Limits of a response, in tokens unless it says otherwise."""

    turn: int
    """Of one turn."""
    response: int
    """Of the response, observations included, without what contexts after cuts repeat."""
    context: int
    """Of a prompt or context and what follows."""
    num_turns: int


@dataclass
class Trajectory:
    """What follows the prompt: sampled turns, and the observations between them."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """0 at observed tokens."""
    mask: list[bool] = field(default_factory=list)
    """True at sampled tokens."""
    turns: list[Turn] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    """Indices of the tokens at which the context begins anew."""
    num_repeated: int = 0
    """Number of tokens of contexts after cuts, without the observations that they end with."""

    @property
    def num_counted(self) -> int:
        """Number of tokens that `Limits.response` limits."""
        return len(self.tokens) - self.num_repeated

    def append(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append sampled tokens with their log-probabilities, or observed ones without."""
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens) if logprobs is None else logprobs
        self.mask += [logprobs is not None] * len(tokens)


def as_turn(policy: Policy, continuation: Continuation, start: int = 0) -> Turn:
    """Return sampled tokens as a turn that begins after `start` tokens of a response."""
    ids = without_eos(policy, continuation.tokens)
    finish: Finish = "stop" if continuation.stopped else "length"
    raw = policy.decode(ids, skip_special_tokens=False)
    return Turn(start, start + len(continuation.tokens), policy.decode(ids), raw, finish)


@dataclass
class Row:
    """A response in progress."""

    prompt: Prompt
    """The prompt of the data."""
    encoded: EncodedPrompt
    """The prompt as the environment shows it."""
    sample: int
    limits: Limits
    episode: Episode
    conversation: Conversation
    trajectory: Trajectory = field(default_factory=Trajectory)
    past: Any = None
    """What the engine kept of the last turn."""
    entropies: Sequence[float] = ()
    """Entropies of the first tokens of the last turn, nats."""
    initial_entropy: float = 0.0
    """H_initial of `branching.Entropy`, which branches have of the response that they left."""
    branch: Branch | None = None
    """Where this response branched off another; None: sampled from the prompt on."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Decisions about branches of this response, for the sample log."""
    status: Literal["running", "ended", "limited"] = "running"
    """ended: by the environment. limited: a limit ended it."""
    out_of_turns: bool = False
    """True if the limit on turns ended it."""

    @property
    def done(self) -> bool:
        """True if no turn follows."""
        return self.status != "running"

    @property
    def segment(self) -> list[int]:
        """The ids that the policy has read: from the prompt on, or from the last cut on."""
        tokens = self.trajectory.tokens
        cuts = self.trajectory.cuts
        return tokens[cuts[-1] :] if cuts else [*self.encoded.tokens, *tokens]

    def copied(self) -> Row:
        """Return a copy that goes on without an effect on this response."""
        return replace(
            self,
            episode=copy.deepcopy(self.episode),
            conversation=copy.deepcopy(self.conversation),
            trajectory=copy.deepcopy(self.trajectory),
            past=None,
            decisions=[],
        )

    def context(self, samples: Sequence[int], num_entropies: int, keep: bool) -> Context:
        """Return the ids that the next turn continues, with what the engine kept of the last one,
        which this row then drops."""
        ids = self.segment
        remaining = self.limits.response - self.trajectory.num_counted
        limit = min(self.limits.turn, remaining, self.limits.context - len(ids))
        position = len(self.trajectory.tokens)
        past = self.past
        self.past = None
        return Context(self.encoded, ids, samples, limit, position, num_entropies, past, keep)

    def add_turn(self, policy: Policy, continuation: Continuation) -> Turn:
        """Append the sampled tokens of a turn, and return it."""
        self.past = continuation.past
        self.entropies = continuation.entropies
        start = len(self.trajectory.tokens)
        self.trajectory.append(continuation.tokens, continuation.logprobs)
        return as_turn(policy, continuation, start)

    def add_reply(self, policy: Policy, turn: Turn, reply: Reply) -> None:
        """Append the reply of the environment to a turn. A truncated turn is the last one."""
        trajectory = self.trajectory
        reply = checked(reply)
        turn = replace(turn, reward=reply.reward, calls=tuple(reply.calls))
        trajectory.turns.append(turn)
        if reply.messages is None:
            self.status = "ended"
            return
        if turn.finish == "length" or len(trajectory.turns) == self.limits.num_turns:
            self.status = "limited"
            self.out_of_turns = turn.finish == "stop"
            return
        has_eos = trajectory.tokens[-1] in policy.eos_ids
        new, context = self.conversation.observe(policy, turn.raw, has_eos, reply.messages)
        length = len(self.segment) + len(new) if context is None else len(context)
        is_full = trajectory.num_counted + len(new) >= self.limits.response
        if is_full or length >= self.limits.context:
            self.status = "limited"
            return
        if context is not None:
            trajectory.cuts.append(len(trajectory.tokens))
            trajectory.num_repeated += len(context) - len(new)
        trajectory.turns[-1] = replace(turn, observed=tuple(reply.messages))
        trajectory.append(new if context is None else context)

    def add_end(self, reply: Reply) -> None:
        """Add what the environment gives a response that a limit ended to its last turn."""
        turn = self.trajectory.turns[-1]
        reply = checked(reply)
        given = [x for x in (turn.reward, reply.reward) if x is not None]
        self.trajectory.turns[-1] = replace(
            turn, reward=sum(given) if given else None, calls=(*turn.calls, *reply.calls)
        )

    def response(self, iteration: int, *, branches: bool) -> Response:
        """Return the response, whose last token is a sampled one: observations are appended only if
        a turn follows. `branches`: a rule decides whether responses branch."""
        trajectory = self.trajectory
        last = trajectory.turns[-1]
        meta: dict[str, Any] = {"sample": self.sample, "iteration": iteration}
        if branches:
            meta["decisions"] = self.decisions
        if self.out_of_turns:
            meta["out_of_turns"] = True
        return Response(
            prompt=self.prompt,
            prompt_tokens=self.encoded.tokens,
            tokens=trajectory.tokens,
            behavior_logprobs=trajectory.logprobs,
            text=last.text,
            finish="stop" if self.status == "ended" and last.finish == "stop" else "length",
            meta=meta,
            branch=self.branch,
            mask=trajectory.mask,
            turns=tuple(trajectory.turns),
            cuts=tuple(trajectory.cuts),
        )


def checked(reply: Reply) -> Reply:
    """Return the reply with a plain number as its reward or, if that is not finite, one that ends
    the episode as a crash, which `train/tool_errors` counts and `reward=environment` does not
    score."""
    reward = None if reply.reward is None else float(reply.reward)
    if reward is None or math.isfinite(reward):
        return Reply(reply.messages, reward, reply.calls)
    text = f"Error: the reward of a turn is {reward}, not a finite number"
    return Reply(None, calls=[*reply.calls, ToolCall("environment", {}, text, "crash")])


class Tree:
    """The responses to a prompt. If they branch by a rule, there are never more than M, and that
    many in the end: what branches leave of the budget goes to new responses from the prompt on,
    once all others have ended. Branches at once get what is left of the budget in the order of
    rows."""

    def __init__(
        self,
        begin: Callable[[int], Row],
        num_responses: int,
        rule: Entropy | None,
        vocabulary: int,
        key: tuple[int | str, ...],
    ) -> None:
        """
        Args:
            begin: returns the response of this index, before its first turn.
            num_responses: M.
            rule: None: no response branches.
            vocabulary: number of its tokens.
            key: seed, prompt and iteration, as for sampling.
        """
        num_initial = num_responses if rule is None else min(rule.num_initial, num_responses)
        self.rows = list(map(begin, range(num_initial)))
        self.begin = begin
        self.num_responses = num_responses
        self.rule = rule
        self.vocabulary = vocabulary
        self.key = key
        self.active = list(self.rows)
        self.starts: dict[int, Row] = {}
        """Responses as they were before the turn that is being sampled, by index."""

    def keep_starts(self) -> None:
        """Copy what branches of the next turns need."""
        if len(self.rows) < self.num_responses:
            started = [row for row in self.active if row.trajectory.turns]
            self.starts = {row.sample: row.copied() for row in started}

    def next_rows(self) -> list[Row]:
        """Return the responses that go on, after each has had a turn."""
        num_before = len(self.rows)
        if self.rule is not None:
            for row in self.active:
                self._branch(row, self.rule)
        if all(row.done for row in self.rows):
            self.rows += map(self.begin, range(len(self.rows), self.num_responses))
        self.active = [row for row in self.active if not row.done] + self.rows[num_before:]
        return self.active

    def _branch(self, row: Row, rule: Entropy) -> None:
        """Add the branches that leave a response before the turn that it has had."""
        turn = row.trajectory.turns[-1]
        entropy = rule.normalized_entropy(row.entropies, self.vocabulary)
        if len(row.trajectory.turns) == 1:
            row.initial_entropy = entropy
            return
        # the observation at which it branched off itself
        if row.branch is not None and row.branch.shared == turn.start:
            return
        probability = rule(entropy, row.initial_entropy)
        num_branches = 0
        if rule.branches(probability, *self.key, "branch", row.sample, turn.start):
            num_branches = min(rule.num_branches, self.num_responses - len(self.rows))
        decision = Decision(
            row.sample, turn.start, entropy, row.initial_entropy, probability, num_branches
        )
        row.decisions.append(decision._asdict())
        for _ in range(num_branches):
            branch = self.starts[row.sample].copied()
            branch.sample = len(self.rows)
            branch.branch = Branch(row.sample, turn.start)
            branch.past = row.past
            self.rows.append(branch)


def shared_contexts(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each context: all rows before their first turn whose prompts are the same,
    whose ids are then processed once, and one row in a later turn."""
    shared: dict[Hashable, list[Row]] = {}
    for row in rows:
        key: Hashable = id(row)
        if not row.trajectory.tokens:
            key = (id(row.prompt), row.encoded.occurrence, tuple(row.encoded.tokens))
        shared.setdefault(key, []).append(row)
    return list(shared.values())
