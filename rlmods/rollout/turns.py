"""Responses of several turns: the policy samples a turn, an environment replies, the policy goes
on."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from rlmods.branching import Entropy, NoBranching
from rlmods.branching.plan import BranchPlan
from rlmods.environment import SingleTurn
from rlmods.errors import UserError
from rlmods.needs import EnvironmentNeeds, RolloutNeeds, needs_of
from rlmods.policy.base import Policy
from rlmods.policy.conversation import Conversation
from rlmods.protocols import (
    BindsPolicy,
    ChecksPolicy,
    ChecksPrompt,
    ContinuesTurns,
    EndsEarly,
    Environment,
    Episode,
    Truncates,
)
from rlmods.rollout.encoding import (
    Context,
    Continuation,
    EncodedPrompt,
    encode_prompt,
    next_occurrence,
    without_eos,
)
from rlmods.rollout.threads import Threads
from rlmods.types import Branch, Prompt, Reply, Response, Turn

MAX_WORKERS = 32
"""Threads in which environments reply."""


def over_turns(rollout: Any, environment: Any, branching: Any = None) -> Any:
    """Return the rollout that samples in this environment: `rollout` itself where a response is a
    single turn. `branching`: the rule by which responses branch; None or `NoBranching`: they do
    not."""
    rule = None if isinstance(branching, NoBranching) else branching
    return rollout if isinstance(environment, SingleTurn) else MultiTurn(rollout, environment, rule)


@dataclass
class MultiTurn:
    """Samples responses of several turns with another rollout, which continues token ids
    (`extend`).

    All responses of a call go through their turns together: one round samples a turn of each, and
    the environment replies to those of a batch in threads while the next batch is sampled. The ids
    of a response grow by what is sampled and by what is observed, and are never encoded again,
    unless the chat template writes earlier turns in another way: then the next turn continues a
    context of its own (`Response.cuts`). What is sampled depends on the weights, the ids so far and
    on (seed, prompt id, how often that id occurred before, sample, iteration, position), up to
    rounding, which depends on the other rows; the order in which tools return changes nothing.

    A response ends when the environment ends it, and is truncated (`finish="length"`) at the limit
    on the tokens of a turn, after `environment.max_turns` turns, and if the next observation would
    leave no room for a turn within `environment.max_tokens` tokens or the model's context. Its last
    token is always a sampled one.

    With `branching`, some of the responses to a prompt begin as prefixes of others, up to and
    including an observation (`BranchPlan`). Their episodes go on from copies of the episode at that
    point (`copy.deepcopy`)."""

    rollout: Any
    """Samples the turns; its `max_tokens` is the limit of one turn."""
    environment: Environment
    """Replies to them."""
    branching: Entropy | None = None
    """The rule by which responses branch after an observation; None: every response is sampled from
    the prompt on."""
    max_tokens: int = field(default=0, init=False)
    """Maximum number of tokens of a response, observations included."""
    on_tokens: Callable[[int, int, int], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    """Called while sampling with the finished rows, all rows and the tokens sampled so far in this
    call of `generate`."""
    _policy: Policy | None = field(default=None, init=False, repr=False, compare=False)
    _environment: Any = field(default=None, init=False, repr=False, compare=False)
    """The environment, bound to the policy."""
    _occurrences: Counter[tuple[str, int]] = field(
        default_factory=Counter, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.rollout, ContinuesTurns):
            name = type(self.rollout).__name__
            raise UserError(
                f"rollout {name} samples responses of one turn only (it has no extend): type "
                "environment=single_turn"
            )
        # without it, `config.rules` says so
        self.max_tokens = getattr(self.environment, "max_tokens", 0)

    def with_settings(self, **settings: Any) -> MultiTurn:
        """Return a copy with other sampling settings, whose responses do not branch. Settings that
        the rollout does not have are ignored."""
        rollout = replace(
            self.rollout, **{k: v for k, v in settings.items() if hasattr(self.rollout, k)}
        )
        return replace(self, rollout=rollout, branching=None)

    @property
    def temperature(self) -> float:
        """Temperature of the rollout."""
        return float(self.rollout.temperature)

    @property
    def top_p(self) -> float:
        """Truncation of the distribution by the rollout."""
        return self.rollout.top_p if isinstance(self.rollout, Truncates) else 1.0

    @property
    def top_k(self) -> int:
        """Truncation of the distribution by the rollout."""
        return self.rollout.top_k if isinstance(self.rollout, Truncates) else 0

    @property
    def seed(self) -> int:
        """Seed of the rollout."""
        return int(getattr(self.rollout, "seed", 0))

    @property
    def needs(self) -> RolloutNeeds:
        return needs_of(self.rollout, RolloutNeeds)

    @property
    def batch_size(self) -> int:
        """Number of rows that are sampled at once."""
        return int(getattr(self.rollout, "batch_size", 1 << 30))

    def check_policy(self, policy: Policy) -> None:
        """Check that the rollout can sample from the policy.

        Raises:
            UserError: it cannot.
        """
        if isinstance(self.rollout, ChecksPolicy):
            self.rollout.check_policy(policy)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Update the weights of the rollout."""
        self._policy = policy
        self._environment = bind(self.environment, policy)
        self._occurrences.clear()
        self.rollout.sync(policy, iteration=iteration)

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major.

        Raises:
            UserError: a prompt is empty or leaves no room for a response, the policy's logits are
            not finite, or the chat template refuses
                the messages of the environment.
        """
        if (policy := self._policy) is None:
            raise RuntimeError("generate() before sync(): there is no policy to sample from")
        groups = [self._start(policy, prompt, samples, iteration) for prompt in prompts]
        active = [row for group in groups for row in group.rows]
        progress = _Progress(self.on_tokens, len(prompts) * samples)
        rollout = copy.copy(self.rollout)
        rollout.on_tokens = progress.on_step
        stop = needs_of(self._environment, EnvironmentNeeds).stop
        if stop:
            rollout.stop = (*getattr(rollout, "stop", ()), *stop)
        with (
            getattr(rollout, "sampling", nullcontext)(),
            Threads(MAX_WORKERS, "environment") as threads,
        ):
            while active:
                for group in groups:
                    group.keep_starts()
                replies = []
                for batch in self._batches(_shared_contexts(active)):
                    sampled = rollout.extend(self._contexts(batch, active), iteration=iteration)
                    turns = [
                        (row, row.sampled(policy, continuation))
                        for own, continuations in zip(batch, sampled, strict=True)
                        for row, continuation in zip(own, continuations, strict=True)
                    ]
                    replies += [
                        (row, turn, threads.submit(row.episode.reply, turn)) for row, turn in turns
                    ]
                    progress.add(turn.stop - turn.start for _, turn in turns)
                for row, turn, reply in replies:
                    row.replied(policy, turn, reply.result(), self.environment.max_turns)
                    progress.done += row.done
                ends = []
                for row, *_ in replies:
                    limited = row.done and not row.ended
                    if limited and isinstance(row.episode, EndsEarly):
                        ends.append((row, threads.submit(row.episode.end)))
                for row, reply in ends:
                    row.cut_off(reply.result())
                active = [row for group in groups for row in group.next_rows()]
                for row, _, _ in replies:
                    row.past = None if row.done else row.past
        rows = [row for group in groups for row in group.rows]
        return [row.response(iteration, branches=self.branching is not None) for row in rows]

    @property
    def num_entropies(self) -> int:
        """Number of tokens of a turn whose entropies decide about branches."""
        return 0 if self.branching is None else self.branching.num_tokens

    def _start(self, policy: Policy, prompt: Prompt, samples: int, iteration: int) -> _Group:
        """Return the responses to a prompt, with those that are sampled from the prompt on at
        first."""
        occurrence = next_occurrence(prompt, self._occurrences)
        max_length = getattr(self.rollout, "max_length", None)

        def begin(sample: int) -> _Row:
            episode = self._environment.start(
                prompt, key=(self.seed, prompt.id, occurrence, sample, iteration)
            )
            shown = replace(episode.prompt, id=prompt.id, time=prompt.time)
            conversation = Conversation.begin(policy, shown, episode.tools)
            max_turn_tokens = min(int(self.rollout.max_tokens), self.max_tokens)
            encoded = encode_prompt(
                policy, shown, occurrence, max_turn_tokens, max_length, tools=episode.tools
            )
            context_length = min(policy.context_length, max_length or policy.context_length)
            return _Row(
                prompt,
                encoded,
                sample,
                episode,
                conversation,
                max_turn_tokens,
                self.max_tokens,
                context_length,
            )

        if self.branching is None:
            return _Group(begin, samples)
        vocabulary = policy.model.get_input_embeddings().weight.shape[0]
        return _Tree(
            begin,
            samples,
            self.branching,
            vocabulary,
            (self.seed, prompt.id, occurrence, iteration),
        )

    def _batches(self, contexts: list[list[_Row]]) -> Iterator[list[list[_Row]]]:
        """Yield rows of contexts of similar length together, the longest first, as many as are
        sampled at once. Contexts of a batch have the same number of rows."""
        order = sorted(contexts, key=lambda rows: (-len(rows), -len(rows[0].segment)))
        while order:
            num_samples = len(order[0])
            size = max(1, self.batch_size // num_samples)
            batch = [rows for rows in order[:size] if len(rows) == num_samples]
            order = order[len(batch) :]
            yield batch

    def _contexts(self, batch: Sequence[Sequence[_Row]], active: Sequence[_Row]) -> list[Context]:
        """Return the context of each group of rows. What the engine processes is kept of at most as
        many rows as it samples at once, in all batches, and not in the last turn."""
        held = sum(row.past is not None for row in active) - sum(
            row.past is not None for own in batch for row in own
        )
        contexts, num_free = [], self.batch_size - held
        for own in batch:
            keep = len(own) <= num_free and len(own[0].turns) + 1 < self.environment.max_turns
            num_free -= len(own) * keep
            contexts.append(
                replace(
                    own[0].context(self.num_entropies),
                    samples=[row.sample for row in own],
                    past=own[0].past,
                    keep=keep,
                )
            )
            own[0].past = None
        return contexts


def bind(environment: Any, policy: Policy) -> Any:
    """Return the environment for this policy (`for_policy`), or unchanged if it is the same for
    all."""
    return environment.for_policy(policy) if isinstance(environment, BindsPolicy) else environment


def find_prompt_without_episode(rollout: Any, prompts: Iterable[Prompt]) -> str | None:
    """Return the first prompt with which the environment of a rollout cannot begin, and why; None
    if there is none."""
    environment = rollout.environment if isinstance(rollout, MultiTurn) else None
    if not isinstance(environment, ChecksPrompt):
        return None
    for prompt in prompts:
        try:
            environment.check_prompt(prompt)
        except ValueError as error:
            return f"{prompt.name}: {error}"
    return None


def num_added_tokens(policy: Policy, rollout: Any, prompts: Sequence[Prompt]) -> int:
    """Return the number of tokens by which the environment of a rollout makes the first prompt
    longer: its instructions and the schemas of its tools. 0 for a rollout without an
    environment."""
    if not prompts or not isinstance(rollout, MultiTurn):
        return 0
    episode = bind(rollout.environment, policy).start(prompts[0], key=(0, prompts[0].id, 0, 0, 0))
    shown = (
        policy.encode(episode.prompt, episode.tools)
        if episode.tools
        else policy.encode(episode.prompt)
    )
    if isinstance(episode, EndsEarly):
        episode.end()
    return len(shown) - len(policy.encode(prompts[0]))


@dataclass
class _Row:
    """A response in progress."""

    prompt: Prompt
    encoded: EncodedPrompt
    """The prompt as the environment shows it."""
    sample: int
    episode: Episode
    conversation: Conversation
    max_turn_tokens: int
    max_tokens: int
    """Maximum number of tokens of the response, observations included, without what contexts after
    cuts repeat."""
    context_length: int
    """Maximum number of tokens of a prompt or context and what follows."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    entropies: Sequence[float] = ()
    """Entropies at the first tokens of the turn that was sampled last."""
    past: Any = field(default=None, repr=False)
    """What the engine kept of the last turn."""
    branch: Branch | None = None
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Decisions about branches of this response, for the sample log."""
    done: bool = False
    cuts: list[int] = field(default_factory=list)
    """Indices of the tokens at which the context begins anew."""
    num_repeated: int = 0
    """Number of tokens of contexts after cuts, without the observations that they end with."""
    ended: bool = False
    """True if the environment ended the episode, False if a limit did."""

    def copied(self, **changes: Any) -> _Row:
        """Return a copy, with other values of some fields, that goes on without an effect on this
        response."""
        parts: dict[str, Any] = {
            name: copy.deepcopy(getattr(self, name)) for name in ("episode", "conversation")
        }
        lists: dict[str, Any] = {
            name: list(getattr(self, name))
            for name in ("tokens", "logprobs", "mask", "turns", "cuts")
        }
        return replace(
            self, **{**parts, **lists, "entropies": (), "decisions": [], "past": None, **changes}
        )

    def context(self, num_entropies: int = 0) -> Context:
        """Return the ids that the next turn continues."""
        ids = self.segment
        limit = min(
            self.max_turn_tokens, self.max_tokens - self.num_counted, self.context_length - len(ids)
        )
        return Context(self.encoded, ids, [self.sample], limit, len(self.tokens), num_entropies)

    @property
    def segment(self) -> list[int]:
        """The ids that the policy has read: from the prompt on, or from the last cut on."""
        return self.tokens[self.cuts[-1] :] if self.cuts else [*self.encoded.tokens, *self.tokens]

    @property
    def num_counted(self) -> int:
        """Number of tokens that `max_tokens` limits."""
        return len(self.tokens) - self.num_repeated

    def sampled(self, policy: Policy, continuation: Continuation) -> Turn:
        """Append the sampled tokens of a turn."""
        self.entropies, self.past = continuation.entropies, continuation.past
        start, ids = len(self.tokens), without_eos(policy, continuation.tokens)
        self.tokens += continuation.tokens
        self.logprobs += continuation.logprobs
        self.mask += [True] * len(continuation.tokens)
        finish: Any = "stop" if continuation.stopped else "length"
        return Turn(start, len(self.tokens), policy.decode(ids), policy.decode_raw(ids), finish)

    def replied(self, policy: Policy, turn: Turn, reply: Reply, max_turns: int) -> None:
        """Append what the environment replied to a turn. A truncated turn is the last one."""
        self.turns.append(replace(turn, reward=_reward(reply), calls=tuple(reply.calls)))
        self.ended = reply.messages is None
        self.done = self.ended or turn.finish == "length" or len(self.turns) == max_turns
        if self.done:
            return
        assert reply.messages is not None
        has_eos = self.tokens[-1] in policy.eos_ids
        new, context = self.conversation.observe(policy, turn.raw, has_eos, reply.messages)
        observed = new if context is None else context
        length = len(observed) if context is not None else len(self.segment) + len(new)
        if self.num_counted + len(new) >= self.max_tokens or length >= self.context_length:
            self.done = True
            return
        if context is not None:
            self.cuts.append(len(self.tokens))
            self.num_repeated += len(context) - len(new)
        self.tokens += observed
        self.logprobs += [0.0] * len(observed)
        self.mask += [False] * len(observed)

    def cut_off(self, reply: Reply) -> None:
        """Add what the environment gives a response that a limit ended to its last turn."""
        turn, reward = self.turns[-1], _reward(reply)
        given = [x for x in (turn.reward, reward) if x is not None]
        self.turns[-1] = replace(
            turn, reward=sum(given) if given else None, calls=(*turn.calls, *reply.calls)
        )

    def response(self, iteration: int, *, branches: bool) -> Response:
        """Return the response, whose last token is a sampled one: observations are appended only if
        a turn follows. `branches`: a rule decides whether responses branch."""
        return Response(
            prompt=self.prompt,
            prompt_tokens=self.encoded.tokens,
            tokens=self.tokens,
            behavior_logprobs=self.logprobs,
            text=self.turns[-1].text,
            finish="stop" if self.ended and self.turns[-1].finish == "stop" else "length",
            meta={
                "sample": self.sample,
                "iteration": iteration,
                **({"decisions": self.decisions} if branches else {}),
            },
            branch=self.branch,
            mask=self.mask,
            turns=tuple(self.turns),
            cuts=tuple(self.cuts),
        )


class _Group:
    """The responses to a prompt, none of which branch."""

    def __init__(self, begin: Callable[[int], _Row], num_responses: int) -> None:
        """
        Args:
            begin: returns the response of this index, before its first turn.
        """
        self.begin = begin
        self.rows = [begin(sample) for sample in range(num_responses)]

    def keep_starts(self) -> None:
        """Copy what branches of the next turns need."""

    def next_rows(self) -> list[_Row]:
        """Return the responses that go on, after each has had a turn."""
        return [row for row in self.rows if not row.done]


class _Tree(_Group):
    """The responses to a prompt, which branch by a rule."""

    def __init__(
        self,
        begin: Callable[[int], _Row],
        num_responses: int,
        rule: Entropy,
        vocabulary: int,
        key: tuple[int | str, ...],
    ) -> None:
        self.plan = BranchPlan(rule, num_responses, key)
        self.vocabulary = vocabulary
        self.active: list[_Row] = []
        self.starts: dict[int, _Row] = {}
        """Responses as they were before the turn that is being sampled, by index."""
        super().__init__(begin, len(self.plan))
        self.active = list(self.rows)

    def keep_starts(self) -> None:
        if len(self.plan) < self.plan.num_responses:
            self.starts = {row.sample: row.copied() for row in self.active if row.turns}

    def next_rows(self) -> list[_Row]:
        new = [branch for row in self.active for branch in self._branches(row)]
        ended = [row for row in self.active if row.done]
        new += [self.begin(sample) for row in ended for sample in self.plan.on_end(row.sample)]
        self.rows += new
        self.active = [row for row in self.active if not row.done] + new
        return self.active

    def _branches(self, row: _Row) -> list[_Row]:
        """Return the branches that leave a response before the turn that it has had."""
        turn = row.turns[-1]
        entropy = self.plan.rule.normalized_entropy(row.entropies, self.vocabulary)
        if len(row.turns) == 1:
            self.plan.on_start(row.sample, entropy)
            return []
        # the observation at which it branched off itself
        if row.branch is not None and row.branch.shared == turn.start:
            return []
        samples = self.plan.on_tool_result(row.sample, turn.start, entropy)
        row.decisions.append(self.plan.decisions[-1]._asdict())
        branch = Branch(row.sample, turn.start)
        return [
            self.starts[row.sample].copied(sample=sample, branch=branch, past=row.past)
            for sample in samples
        ]


def _shared_contexts(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Return the rows of each context: all rows before their first turn whose prompts are the same,
    whose ids are then processed once, and one row in a later turn."""
    shared: dict[Any, list[_Row]] = {}
    for row in rows:
        is_first = not row.tokens
        key = (
            (id(row.prompt), row.encoded.occurrence, tuple(row.encoded.tokens))
            if is_first
            else id(row)
        )
        shared.setdefault(key, []).append(row)
    return list(shared.values())


def _reward(reply: Reply) -> float | None:
    """Return the reward of a reply, which may be a number of NumPy, as a plain one.

    Raises:
        UserError: it is not finite.
    """
    if reply.reward is None:
        return None
    if not math.isfinite(reply.reward):
        raise UserError(
            f"environment: the reward of a turn is {reply.reward}: return a finite number, or "
            "None for no reward"
        )
    return float(reply.reward)


class _Progress:
    """Adds up what one call of `generate` has sampled."""

    def __init__(self, hook: Callable[[int, int, int], None] | None, total: int) -> None:
        self.hook, self.total, self.done, self.tokens = hook, total, 0, 0

    def on_step(self, done: int, total: int, tokens: int) -> None:
        """Report the tokens of a call of the rollout, in which rows end a turn."""
        if self.hook is not None:
            self.hook(self.done, self.total, self.tokens + tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Count the tokens of a batch."""
        self.tokens += sum(tokens)
