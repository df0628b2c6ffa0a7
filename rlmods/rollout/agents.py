"""Programs that send requests (`environment=agent`): the turns of their sessions, which are sampled
together, and the responses that they make.

A session is a tree of sampled turns. A request whose messages are what a turn's conversation says,
and more, follows the turn: its context is the turn's own ids and the ids of the new messages. Any
other request begins a conversation of its own. The response of a session joins the paths of the
tree as segments (`Response.cuts`), so that each turn is trained on the ids that it was sampled
after, and what is repeated between segments has no loss."""

from __future__ import annotations

import copy
import hashlib
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast

from rlmods.environment.agent import Agent, RunningAgent
from rlmods.environment.chat_completions import message_keys, tools_key
from rlmods.environment.session import (
    Answer,
    Ask,
    Choice,
    Outcome,
    Request,
    RequestError,
    give,
    refuse,
    settle,
)
from rlmods.errors import UserError, counted
from rlmods.policy.base import Policy
from rlmods.policy.conversation import Conversation
from rlmods.rollout.base import Context, Continuation, EncodedPrompt, Progress, TokenRollout
from rlmods.rollout.dialect import Dialect
from rlmods.rollout.trajectory import Limits, Trajectory, as_turn
from rlmods.types import Prompt, Response, SessionRecord, Turn


@dataclass(eq=False)
class Node:
    """A turn of a session, and the ids that it was sampled after."""

    parent: Node | None
    """The turn that it follows; None if it begins a conversation."""
    encoded: EncodedPrompt
    """The prompt of its conversation, whose id names its random numbers."""
    read: list[int]
    """Ids of the messages since `parent`; without one, or after a cut, of all messages."""
    num_new: int
    """Number of ids of the messages since `parent`, without what a cut repeats."""
    is_cut: bool
    """True if `read` is the whole conversation, because the chat template writes earlier turns in
    another way."""
    conversation: Conversation
    """The conversation before this turn."""
    heard: tuple[str, ...]
    """The messages before this turn, and after it also its own; begins with the tools."""
    observed: Sequence[Any]
    """The messages of `read`."""
    stop: Sequence[str]
    sample: int
    """Index of the session among the prompt's G responses."""
    position: int = 0
    """Number of the first of its random numbers."""
    order: int | str = 0
    """Place among the turns of the session."""
    limit: int = 0
    """Maximum number of tokens to sample."""
    continuation: Continuation = field(init=False)
    turn: Turn = field(init=False)
    past: Any = field(default=None, repr=False)
    """What the engine kept of it."""

    @property
    def sampled(self) -> list[int]:
        return self.continuation.tokens

    def context(self) -> list[int]:
        """Return the ids that the turn is sampled after."""
        node = self
        pieces = [node.read]
        while node.parent is not None and not node.is_cut:
            node = node.parent
            pieces += [node.sampled, node.read]
        return list(chain.from_iterable(reversed(pieces)))


@dataclass(eq=False)
class Dialog:
    """The turns of a session."""

    prompt: Prompt
    sample: int
    occurrence: int
    limits: Limits
    by_content: bool
    """Random numbers and order of a turn are a function of its context (`Agent.parallel`)."""
    running: RunningAgent = field(init=False)
    """The program, once it has begun."""
    nodes: list[Node] = field(default_factory=list)
    """The turns, in the order of their answers."""
    ends: dict[tuple[str, ...], Node] = field(default_factory=dict)
    """The turn at the end of each conversation that a request may continue."""
    has_child: set[Node] = field(default_factory=set)
    """The nodes that a turn follows."""
    contexts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Number of turns after each context."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events by their names in `SessionRecord`."""
    was_refused: bool = False
    """True if a request was refused since the last answer."""
    num_tokens: int = 0
    """Tokens of turns and observations, with the limits of turns that are being sampled."""
    is_limited: bool = False
    """True if a limit refused a request."""
    out_of_turns: bool = False
    outcome: Outcome | None = None

    def take(self, policy: Policy, dialect: Dialect) -> list[tuple[Request, list[Node]]]:
        """Return the requests that wait, with the turns that are to answer them. Requests that
        cannot be answered are refused. The order of requests depends on their contents, whatever
        came first."""
        asked = []
        for request in sorted(self.running.session.take(), key=_contents):
            try:
                nodes = self._nodes(policy, dialect, request.ask)
            except (RequestError, UserError) as error:
                self.counts["refused"] += 1
                if isinstance(error, UserError):
                    error = RequestError(400, str(error))
                refuse(request, error)
                if not self.was_refused:  # else a program that asks on and on never ends
                    self.running.session.restart_clock()
                self.was_refused = True
            else:
                self.counts["requests"] += 1
                asked.append((request, nodes))
        return asked

    def _nodes(self, policy: Policy, dialect: Dialect, ask: Ask) -> list[Node]:
        """Return the turns that are to answer a request.

        Raises:
            RequestError: a limit is reached.
            UserError: the chat template refuses the messages.
        """
        if len(self.nodes) + ask.n > self.limits.num_turns:
            self.is_limited = True
            self.out_of_turns = True
            limit = f"environment.max_turns={self.limits.num_turns}"
            raise RequestError(400, f"the session has had its turns ({limit})", "max_turns")
        heard: tuple[str, ...] = ()
        if ask.text is None:
            heard = (tools_key(ask.tools), *message_keys(ask.messages))
        parent = self._parent(heard)
        if parent is None:
            node = self._begin(policy, dialect, ask, heard)
        else:
            node = self._follow(policy, dialect, ask, heard, parent)
        node.limit = self._room(node, ask)
        nodes = [node, *(replace(node) for _ in range(ask.n - 1))]
        for node in nodes:
            self._place(node)
        return nodes

    def _parent(self, heard: tuple[str, ...]) -> Node | None:
        """Return the last turn that a request's messages continue; None if there is none."""
        for length in range(len(heard) - 1, 1, -1):
            found = self.ends.get(heard[:length])
            if found is not None:
                return found
        return None

    def _begin(self, policy: Policy, dialect: Dialect, ask: Ask, heard: tuple[str, ...]) -> Node:
        """Return a turn that begins a conversation."""
        shown = dialect.prompt(ask, self.prompt)
        schemas = dialect.schemas(ask)
        tokens = policy.encode(shown, schemas)
        if not tokens:
            raise RequestError(400, "the messages are empty")
        encoded = EncodedPrompt(shown, tokens, self.occurrence, self.limits.turn)
        return Node(
            parent=None,
            encoded=encoded,
            read=tokens,
            num_new=len(tokens),
            is_cut=False,
            conversation=Conversation.begin(policy, shown, schemas),
            heard=heard,
            observed=shown.messages or [{"role": "user", "content": shown.text or ""}],
            stop=dialect.stop(ask),
            sample=self.sample,
        )

    def _follow(
        self, policy: Policy, dialect: Dialect, ask: Ask, heard: tuple[str, ...], parent: Node
    ) -> Node:
        """Return a turn that follows another one."""
        new = dialect.messages(ask.messages[len(parent.heard) - 1 :])
        conversation = copy.deepcopy(parent.conversation)
        has_eos = parent.sampled[-1] in policy.eos_ids
        read, context = conversation.observe(policy, parent.turn.raw, has_eos, new)
        return Node(
            parent=parent,
            encoded=parent.encoded,
            read=read if context is None else context,
            num_new=len(read),
            is_cut=context is not None,
            conversation=conversation,
            heard=heard,
            observed=new,
            stop=dialect.stop(ask),
            sample=self.sample,
        )

    def _room(self, node: Node, ask: Ask) -> int:
        """Return the maximum number of tokens of each turn that answers a request.

        Raises:
            RequestError: there is no room for one.
        """
        remaining = (self.limits.response - self.num_tokens) // ask.n
        if node.parent is not None:
            remaining -= node.num_new
        wanted = self.limits.turn if ask.max_tokens is None else ask.max_tokens
        in_context = self.limits.context - len(node.context())
        room = min(self.limits.turn, wanted, remaining, in_context)
        if room < 1:
            self.is_limited = True
            text = (
                f"no room for a token: environment.max_tokens={self.limits.response}, and a "
                f"context of {self.limits.context}"
            )
            raise RequestError(400, text, "context_length_exceeded")
        return room

    def _place(self, node: Node) -> None:
        """Add a turn to the session, and name its random numbers. With `by_content` they are a
        function of its context. Else the first turn that follows another one goes on with the
        numbers of its conversation, as a turn of any environment does, and a turn that does not
        has numbers of its own."""
        parent = node.parent
        context = tuple(node.context())
        num_equal = self.contexts[context]
        self.contexts[context] += 1
        if parent is None:
            is_new = not self.nodes
            self.counts["cuts"] += not is_new and not num_equal
            self.counts["branches"] += num_equal > 0
        else:
            is_new = parent not in self.has_child
            self.has_child.add(parent)
            self.counts["branches"] += not is_new
            self.num_tokens += node.num_new
        self.num_tokens += node.limit
        node.order = len(self.nodes)
        if self.by_content:
            text = repr(list(context)).encode()
            digest = hashlib.blake2b(text, digest_size=8).hexdigest()
            node.order = f"{digest}-{num_equal:06d}"
        if self.by_content or not is_new:
            shown = replace(node.encoded.prompt, id=f"{self.prompt.id} (turn {node.order})")
            node.encoded = replace(node.encoded, prompt=shown)
        elif parent is not None:
            node.position = parent.position + len(parent.sampled) + len(node.read)
        self.nodes.append(node)

    def answer(
        self, policy: Policy, dialect: Dialect, request: Request, nodes: Sequence[Node]
    ) -> None:
        """Answer a request with its turns, which have been sampled."""
        choices = []
        ask = request.ask
        for node in nodes:
            continuation = node.continuation
            self.num_tokens += len(continuation.tokens) - node.limit
            turn = as_turn(policy, continuation)
            name = hashlib.blake2b(repr(node.order).encode(), digest_size=8).hexdigest()
            message, calls = dialect.read(turn, ask, name)
            node.turn = replace(turn, calls=tuple(calls))
            node.heard = (*node.heard, *message_keys([message]))
            if ask.text is None:
                self.ends.setdefault(node.heard, node)
            pairs = None
            if ask.logprobs:
                texts = [policy.decode([x], skip_special_tokens=False) for x in node.sampled]
                pairs = list(zip(texts, continuation.logprobs, strict=True))
            choices.append(Choice(message, turn.finish, len(node.sampled), pairs))
        first = nodes[0]
        name = hashlib.blake2b(repr(first.order).encode(), digest_size=12).hexdigest()
        num_prompt_tokens = len(first.context())
        self.was_refused = False
        self.running.session.restart_clock()
        give(request, Answer(name, num_prompt_tokens, choices))

    def close(self) -> None:
        """End the program if it runs, and keep how it ended. Rewards of turns without an answer are
        a mistake in the program, unless a limit refused them."""
        outcome = self.running.session.outcome
        given = None if outcome is None else outcome.rewards
        if isinstance(given, list) and 0 < len(self.nodes) < len(given) and not self.is_limited:
            error = (
                f"returned {counted(len(given), 'reward')} for {counted(len(self.nodes), 'turn')}"
            )
            outcome = Outcome("crash", error=error)
        self.outcome = outcome
        self.running.close()

    def record(self, failure_reward: float | None) -> SessionRecord:
        """Return how the session ended. A program that ends by an exception because a limit refused
        its request has not failed."""
        outcome = self.outcome or Outcome("timeout")
        failure: Any = None if outcome.kind == "ended" else outcome.kind
        if failure == "crash" and self.is_limited:
            failure = None
        if not self.nodes:
            failure = failure or "silent"
        error = outcome.error or ("it ended without a request" if failure == "silent" else "")
        return SessionRecord(
            **self.counts, failure=failure, error=error, failure_reward=failure_reward
        )

    def response(self, policy: Policy, iteration: int, failure_reward: float | None) -> Response:
        """Return the response of the session."""
        meta: dict[str, Any] = {"sample": self.sample, "iteration": iteration}
        if self.out_of_turns:
            meta["out_of_turns"] = True
        record = self.record(failure_reward)
        if not self.nodes:
            tokens = policy.encode(self.prompt)
            return Response(self.prompt, tokens, mask=(), meta=meta, session=record)
        if record.failure is None:
            self._set_rewards()
        found = paths(self.nodes)
        trajectory = joined(found)
        last = trajectory.turns[-1]
        is_whole = last.finish == "stop" and not self.is_limited
        return Response(
            prompt=self.prompt,
            prompt_tokens=found[0][0].context(),
            tokens=trajectory.tokens,
            behavior_logprobs=trajectory.logprobs,
            text=last.text,
            finish="stop" if is_whole else "length",
            meta=meta,
            mask=trajectory.mask,
            turns=tuple(trajectory.turns),
            cuts=tuple(trajectory.cuts),
            session=record,
        )

    def _set_rewards(self) -> None:
        """Give the turns the rewards that the program returned: one for the session to the last
        turn, one by turn in the order of the answers."""
        given = None if self.outcome is None else self.outcome.rewards
        nodes = self.nodes
        if isinstance(given, float):
            nodes = self.nodes[-1:]
            given = [given]
        for node, reward in zip(nodes, given or (), strict=False):
            node.turn = replace(node.turn, reward=reward)


def _contents(request: Request) -> tuple[tuple[str, ...], str, str]:
    ask = request.ask
    return message_keys(ask.messages), ask.text or "", tools_key(ask.tools)


def paths(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the turns as paths, each from the beginning of a conversation or from a branch. Of the
    turns that follow the same one, the first in `Node.order` continues its path. The path with the
    turn that was answered last is the last one; others are in the order of their first turns."""
    path_of: dict[Node | None, list[Node]] = {None: []}
    found: list[list[Node]] = []
    waiting = sorted(nodes, key=lambda node: cast(Any, node.order))
    while waiting:
        left = []
        for node in waiting:
            if node.parent not in path_of:
                left.append(node)
                continue
            path = path_of[node.parent]
            if not path or path[-1] is not node.parent:
                path = []
                found.append(path)
            path.append(node)
            path_of[node] = path
        waiting = left
    last = path_of[nodes[-1]]
    return [*(path for path in found if path is not last), last]


def joined(found: Sequence[Sequence[Node]]) -> Trajectory:
    """Return paths one after the other, without the ids that the first turn was sampled after."""
    trajectory = Trajectory()
    for path in found:
        for i, node in enumerate(path):
            if trajectory.turns:
                is_new = i == 0 or node.is_cut
                if is_new:
                    trajectory.cuts.append(len(trajectory.tokens))
                trajectory.append(node.context() if is_new else node.read)
                last = replace(trajectory.turns[-1], observed=tuple(node.observed))
                trajectory.turns[-1] = last
            start = len(trajectory.tokens)
            trajectory.append(node.sampled, node.continuation.logprobs)
            turn = replace(node.turn, start=start, stop=len(trajectory.tokens))
            trajectory.turns.append(turn)
    return trajectory


@dataclass
class Sessions:
    """All sessions of a call of `generate`, of which as many run at once as `Agent.workers`."""

    environment: Agent
    policy: Policy
    dialogs: Sequence[Dialog]
    changed: threading.Condition = field(default_factory=threading.Condition)
    num_begun: int = 0
    """Number of sessions that have begun, which are the first ones."""
    has_parallel: bool = False
    """True if a program has sent several requests at once."""

    def take(self, dialect: Dialect) -> list[tuple[Dialog, Request, list[Node]]]:
        """Wait until all running programs wait or have ended, start others in place of the ended
        ones, and return the requests with the turns that are to answer them; none if all programs
        have ended."""
        while True:
            running = [x for x in self.dialogs[: self.num_begun] if x.outcome is None]
            num_free = self.environment.workers - len(running)
            for dialog in self.dialogs[self.num_begun :][:num_free]:
                dialog.running = self.environment.start(dialog.prompt, changed=self.changed)
                self.num_begun += 1
                running.append(dialog)
            settle([x.running.session for x in running], self.changed)
            for dialog in running:
                if dialog.running.session.outcome is not None:
                    dialog.close()
            running = [x for x in running if x.outcome is None]
            if len(running) < self.environment.workers and self.num_begun < len(self.dialogs):
                continue
            found = []
            for dialog in running:
                taken = dialog.take(self.policy, dialect)
                self.has_parallel |= len(taken) > 1
                found += [(dialog, request, nodes) for request, nodes in taken]
            if found or not running:
                return found

    def close(self) -> None:
        """End all programs."""
        for dialog in self.dialogs[: self.num_begun]:
            dialog.close()


def converse(
    environment: Agent,
    rollout: TokenRollout,
    dialogs: Sequence[Dialog],
    progress: Progress,
    iteration: int,
) -> list[Response]:
    """Hold these dialogs, and return the response of each.

    Raises:
        UserError: the programs of several prompts all failed in the same way, or the policy's
            logits are not finite.
    """
    policy = rollout.synced
    dialect = Dialect.of(policy)
    sessions = Sessions(environment, policy, dialogs)
    nodes: list[Node] = []
    with rollout.sampling(), closing(sessions):
        while found := sessions.take(dialect):
            before = nodes
            nodes = [node for _, _, asked in found for node in asked]
            contexts = _contexts(environment, rollout, nodes)
            for node in before:
                node.past = None
            _sample(environment, rollout, nodes, contexts, iteration)
            progress.tokens += sum(len(node.sampled) for node in nodes)
            for dialog, request, asked in found:
                dialog.answer(policy, dialect, request, asked)
            progress.done = sum(x.outcome is not None for x in dialogs)
    reward = environment.failure_reward
    responses = [x.response(policy, iteration, reward) for x in dialogs]
    notes = list(environment.notes())
    if sessions.has_parallel and not environment.parallel:
        notes.append(
            "programs send several requests at once: type environment.parallel=true for runs that "
            "repeat bit for bit"
        )
    for note in notes:
        warnings.warn(f"environment=agent: {note}", stacklevel=2)
    _check_any_ended(environment, responses)
    return responses


def _contexts(environment: Agent, rollout: TokenRollout, nodes: Sequence[Node]) -> list[Context]:
    """Return the context of each turn. What the engine keeps of a turn is for a turn that follows
    in the next round, of at most as many turns as it samples at once."""
    contexts = []
    for i, node in enumerate(nodes):
        past = None
        if node.parent is not None:
            past = node.parent.past
            node.parent.past = None
        context = Context(
            node.encoded,
            node.context(),
            [node.sample],
            node.limit,
            node.position,
            stop=node.stop,
            past=past,
            keep=not environment.parallel and i < rollout.rows_at_once,
        )
        contexts.append(context)
    return contexts


def _sample(
    environment: Agent,
    rollout: TokenRollout,
    nodes: Sequence[Node],
    contexts: Sequence[Context],
    iteration: int,
) -> None:
    """Sample the turns, together or, with `Agent.parallel`, each alone."""
    batches = [[context] for context in contexts] if environment.parallel else [contexts]
    sampled: list[list[Continuation]] = []
    for batch in batches:
        sampled += rollout.extend(batch, iteration=iteration)
    for node, [continuation] in zip(nodes, sampled, strict=True):
        node.continuation = replace(continuation, past=None)
        node.past = continuation.past


def _check_any_ended(environment: Agent, responses: Sequence[Response]) -> None:
    """Check that programs do not all fail in the same way, which is a mistake in the program. With
    a single prompt, as the last one of a validation, it may also be the prompt.

    Raises:
        UserError: they do.
    """
    if len({response.prompt.id for response in responses}) < 2:
        return
    records = [response.session for response in responses if response.session is not None]
    failures = [record for record in records if record.failure is not None]
    errors = {record.error for record in failures}
    if len(failures) == len(records) and len(errors) == 1:
        program = environment.agent or environment.command
        first = failures[0]
        raise UserError(
            f"environment=agent: all {len(records)} sessions of {program} failed, the first by "
            f"{first.failure}: {first.error}"
        )
