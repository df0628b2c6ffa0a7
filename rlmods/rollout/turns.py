"""Responses of several turns: the policy samples a turn, an environment replies, the policy goes
on."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

from rlmods.branching import Entropy, NoBranching
from rlmods.environment import Agent, SingleTurn
from rlmods.errors import UserError
from rlmods.needs import EnvironmentNeeds, RolloutNeeds, needs_of
from rlmods.policy.base import Policy
from rlmods.policy.conversation import Conversation
from rlmods.protocols import (
    BindsPolicy,
    ChecksPolicy,
    ChecksPrompt,
    EndsEarly,
    Environment,
)
from rlmods.rollout.agents import Dialog, converse
from rlmods.rollout.base import (
    Context,
    OnTokens,
    Progress,
    TokenRollout,
    encode_prompt,
)
from rlmods.rollout.trajectory import Limits, Row, Tree, shared_contexts
from rlmods.types import Prompt, Response

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
    including an observation (`Tree`). Their episodes go on from copies of the episode at that
    point (`copy.deepcopy`)."""

    rollout: TokenRollout
    """Samples the turns; its `max_tokens` is the limit of one turn."""
    environment: Environment | Agent
    """Replies to them."""
    branching: Entropy | None = None
    """The rule by which responses branch after an observation; None: every response is sampled from
    the prompt on."""
    max_tokens: int = field(default=0, init=False)
    """Maximum number of tokens of a response, observations included."""
    on_tokens: OnTokens | None = field(default=None, init=False, repr=False, compare=False)
    """Called while sampling."""
    _environment: Any = field(default=None, init=False, repr=False, compare=False)
    """The environment, bound to the policy."""

    def __post_init__(self) -> None:
        if not isinstance(self.rollout, TokenRollout):
            name = type(self.rollout).__name__
            raise UserError(
                f"rollout {name} samples responses of one turn only (it is not a TokenRollout, of "
                "rlmods.rollout.base): type environment=single_turn"
            )
        # without it, `config.rules` says so
        self.max_tokens = getattr(self.environment, "max_tokens", 0)

    def with_settings(self, **settings: Any) -> MultiTurn:
        """Return a copy with other sampling settings, whose responses do not branch."""
        changed = replace(self, rollout=replace(self.rollout, **settings), branching=None)
        changed.on_tokens = self.on_tokens
        return changed

    @property
    def temperature(self) -> float:
        return self.rollout.temperature

    @property
    def top_p(self) -> float:
        return self.rollout.top_p

    @property
    def top_k(self) -> int:
        return self.rollout.top_k

    @property
    def needs(self) -> RolloutNeeds:
        return needs_of(self.rollout, RolloutNeeds)

    def check_policy(self, policy: Policy) -> None:
        """Check that the rollout can sample from the policy.

        Raises:
            UserError: it cannot.
        """
        if isinstance(self.rollout, ChecksPolicy):
            self.rollout.check_policy(policy)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Update the weights of the rollout."""
        self._environment = bind(self.environment, policy)
        self.rollout.sync(policy, iteration=iteration)

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major.

        Raises:
            UserError: a prompt is empty or leaves no room for a response, the policy's logits are
            not finite, or the chat template refuses the messages of the environment.
        """
        progress = Progress(self.on_tokens, len(prompts) * samples)
        rollout = self._turn_rollout(progress)
        if isinstance(self.environment, Agent):
            dialogs = []
            for prompt in prompts:
                occurrence = self.rollout.next_occurrence(prompt)
                for sample in range(samples):
                    by_content = self.environment.parallel
                    dialogs.append(Dialog(prompt, sample, occurrence, self._limits(), by_content))
            return converse(self.environment, rollout, dialogs, progress, iteration)
        trees = [self._start(prompt, samples, iteration) for prompt in prompts]
        active = _rows(trees)
        with rollout.sampling(), Threads(MAX_WORKERS) as threads:
            while active:
                for tree in trees:
                    tree.keep_starts()
                replies = []
                for batch in self._batches(shared_contexts(active)):
                    contexts = self._contexts(batch, active)
                    sampled = rollout.extend(contexts, iteration=iteration)
                    for row, continuation in zip(chain(*batch), chain(*sampled), strict=True):
                        turn = row.add_turn(rollout.synced, continuation)
                        replies.append((row, turn, threads.submit(row.episode.reply, turn)))
                        progress.tokens += len(continuation.tokens)
                for row, turn, reply in replies:
                    row.add_reply(rollout.synced, turn, reply.result())
                    progress.done += row.done
                _end_early([row for row, _, _ in replies], threads)
                active = []
                for tree in trees:
                    active += tree.next_rows()
                for row, _, _ in replies:
                    if row.done:
                        row.past = None
        branches = self.branching is not None
        return [row.response(iteration, branches=branches) for row in _rows(trees)]

    def _turn_rollout(self, progress: Progress) -> TokenRollout:
        """Return the rollout as it samples turns: with the texts that end one, and with a report of
        its tokens to this one's `on_tokens`."""

        def report(done: int, total: int, tokens: int) -> None:
            if progress.on_tokens is not None:
                progress.on_tokens(progress.done, progress.total, progress.tokens + tokens)

        rollout = copy.copy(self.rollout)
        rollout.on_tokens = report
        rollout.stop = (*rollout.stop, *needs_of(self._environment, EnvironmentNeeds).stop)
        return rollout

    def _limits(self) -> Limits:
        context = self.rollout.synced.context_length
        return Limits(
            turn=min(self.rollout.max_tokens, self.max_tokens),
            response=self.max_tokens,
            context=min(context, self.rollout.max_length or context),
            num_turns=self.environment.max_turns,
        )

    def _start(self, prompt: Prompt, samples: int, iteration: int) -> Tree:
        """Return the responses to a prompt, each before its first turn."""
        policy = self.rollout.synced
        occurrence = self.rollout.next_occurrence(prompt)
        max_length = self.rollout.max_length
        limits = self._limits()

        def begin(sample: int) -> Row:
            key = (self.rollout.seed, prompt.id, occurrence, sample, iteration)
            episode = self._environment.start(prompt, key=key)
            shown = replace(episode.prompt, id=prompt.id, time=prompt.time)
            conversation = Conversation.begin(policy, shown, episode.tools)
            encoded = encode_prompt(
                policy, shown, occurrence, limits.turn, max_length, tools=episode.tools
            )
            return Row(prompt, encoded, sample, limits, episode, conversation)

        vocabulary = policy.model.get_input_embeddings().weight.shape[0]
        key = (self.rollout.seed, prompt.id, occurrence, iteration)
        return Tree(begin, samples, self.branching, vocabulary, key)

    def _batches(self, contexts: list[list[Row]]) -> Iterator[list[list[Row]]]:
        """Yield rows of contexts of similar length together, the longest first, as many as are
        sampled at once. Contexts of a batch have the same number of rows."""
        order = sorted(contexts, key=lambda rows: (-len(rows), -len(rows[0].segment)))
        while order:
            num_samples = len(order[0])
            size = max(1, self.rollout.rows_at_once // num_samples)
            batch = [rows for rows in order[:size] if len(rows) == num_samples]
            order = order[len(batch) :]
            yield batch

    def _contexts(self, batch: Sequence[Sequence[Row]], active: Sequence[Row]) -> list[Context]:
        """Return the context of each group of rows. What the engine processes is kept of at most as
        many rows as it samples at once, in all batches, and not in the last turn."""
        held = sum(row.past is not None for row in active)
        held -= sum(row.past is not None for row in chain(*batch))
        num_free = self.rollout.rows_at_once - held
        num_entropies = 0 if self.branching is None else self.branching.num_tokens
        contexts = []
        for rows in batch:
            first = rows[0]
            is_last = len(first.trajectory.turns) + 1 >= self.environment.max_turns
            keep = len(rows) <= num_free and not is_last
            if keep:
                num_free -= len(rows)
            samples = [row.sample for row in rows]
            contexts.append(first.context(samples, num_entropies, keep))
        return contexts


def _rows(trees: Iterable[Tree]) -> list[Row]:
    return list(chain.from_iterable(tree.rows for tree in trees))


def _end_early(rows: Iterable[Row], threads: Threads) -> None:
    """Let episodes act on responses that a limit ended (`EndsEarly`)."""
    limited = [row for row in rows if row.status == "limited"]
    ends = [(x, threads.submit(x.episode.end)) for x in limited if isinstance(x.episode, EndsEarly)]
    for row, reply in ends:
        row.add_end(reply.result())


def bind(environment: Any, policy: Policy) -> Any:
    """Return the environment for this policy (`for_policy`), or unchanged if it is the same for
    all."""
    return environment.for_policy(policy) if isinstance(environment, BindsPolicy) else environment


def engine_of(rollout: Any) -> Any:
    """Return the part of a rollout that samples turns; the rollout itself if it has one turn."""
    return rollout.rollout if isinstance(rollout, MultiTurn) else rollout


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
    if not prompts or not isinstance(rollout, MultiTurn) or isinstance(rollout.environment, Agent):
        return 0
    environment = bind(rollout.environment, policy)
    episode = environment.start(prompts[0], key=(0, prompts[0].id, 0, 0, 0))
    shown = policy.encode(episode.prompt, episode.tools)
    if isinstance(episode, EndsEarly):
        episode.end()
    return len(shown) - len(policy.encode(prompts[0]))


class Threads:
    """Calls functions in threads, up to `count` at once.

    Unlike `ThreadPoolExecutor`, leaving the context waits for no call: calls that have not begun
    are cancelled, and the threads are daemons, so a call that hangs holds up neither an exception,
    nor Ctrl-C, nor the end of the process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._num_threads = 0
        self._unfinished: set[Future[Any]] = set()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        """Calls that have not begun; None ends a thread."""

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        for future in list(self._unfinished):
            future.cancel()
        for _ in range(self._num_threads):
            self._calls.put(None)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call the function in a thread, and return its future."""
        future: Future[Any] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._calls.put((future, partial(function, *args)))
        if self._num_threads < min(self._count, len(self._unfinished)):
            self._num_threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # raised by `Future.result` in the thread that waits
                    future.set_exception(error)
            del call, future, function  # a thread that waits keeps no arguments
