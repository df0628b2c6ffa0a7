"""Sampling for programs that send requests (`environment=agent`): all requests that wait are
sampled together."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from rlmods.environment import Agent
from rlmods.environment.session import settle
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.base import Context, Continuation, Progress, TokenRollout
from rlmods.rollout.dialect import Dialect
from rlmods.rollout.dialog import Asked, Dialog, Node
from rlmods.types import Response


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

    def take(self, dialect: Dialect) -> list[tuple[Dialog, Asked]]:
        """Wait until all running programs wait or have ended, start others in place of the ended
        ones, and return the requests; none if all programs have ended."""
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
                found += [(dialog, asked) for asked in taken]
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
            nodes = [node for _, asked in found for node in asked.nodes]
            contexts = _contexts(environment, rollout, nodes)
            for node in before:
                node.past = None
            _sample(environment, rollout, nodes, contexts, iteration)
            progress.tokens += sum(len(node.sampled) for node in nodes)
            for dialog, asked in found:
                dialog.answer(policy, dialect, asked)
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
