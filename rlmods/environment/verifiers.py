"""Environments of the verifiers package."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar

from rlmods.data.verifiers_loader import load
from rlmods.environment.seeded import failed
from rlmods.environment.worker import to_text
from rlmods.errors import check_bounds
from rlmods.types import Prompt, Reply, Turn


@dataclass
class Rolling:
    """An episode of `Verifiers`: the state of one rollout of the package."""

    prompt: Prompt
    environment: Verifiers
    state: Any
    messages: Any
    """Conversation that the next turn answers, in the records of the package."""
    tools: Sequence[Any] = field(default=())

    def reply(self, turn: Turn) -> Reply:
        """Give the turn to the environment, whose rubric scores the response if it was the last
        one."""
        return self._run(self._reply(turn))

    def end(self) -> Reply:
        """Let the rubric score a response that a limit has ended."""
        return self._run(self._scored())

    def _run(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        try:
            reply: Reply = _run(work)
            return reply
        except Exception as error:  # whatever an environment raises ends this episode only
            return failed(str(self.environment.env_id), error, self.environment.max_result_chars)

    async def _reply(self, turn: Turn) -> Reply:
        inner, state = self.environment.inner, self.state
        await inner.add_model_response(state, self.messages, _response(turn))
        if turn.finish == "stop" and not await inner.is_completed(state):
            before = len(self.messages) + 1
            self.messages = await inner.get_prompt_messages(state)
            if state.get("final_env_response") is None and not await inner.is_completed(state):
                observed = [
                    _plain(message, self.environment.max_result_chars)
                    for message in self.messages[before:]
                ]
                return Reply(observed, 0.0)
        return await self._scored()

    async def _scored(self) -> Reply:
        inner, state = self.environment.inner, self.state
        await inner.cleanup(state)
        await inner.rubric.score_rollout(state)
        await inner.rubric.cleanup(state)
        return Reply(None, float(state["reward"]))


@dataclass(frozen=True)
class Verifiers:
    """An environment of the package verifiers replies to the policy and its rubric gives the reward
    (`data=verifiers data.env_id=NAME reward=environment`). A response is scored when the
    environment ends it, and when a limit does: of the tokens of a turn or of all, or of turns.

    An environment that raises an exception ends the response without a score, and the exception is
    recorded as a failed call (`train/tool_errors`). Environments with tools, and rubrics that
    compare the responses of a group, are refused.

    Raises: UserError for a missing package and an environment that cannot be trained in; ValueError
    for a field out of range."""

    env_id: str | None = None
    """The environment, that of `data=verifiers`."""
    options: Mapping[str, Any] | None = None
    """Arguments of the environment, those of `data=verifiers`."""
    max_turns: int = 10
    """Number of turns of the policy; an environment may have a smaller limit of its own."""
    max_tokens: int = 4096
    """Maximum number of tokens of all turns and observations of a response."""
    max_result_chars: int = 4000
    """Characters of an observation."""

    copies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        counts = ("max_turns", "max_tokens", "max_result_chars")
        check_bounds(
            self, "environment", {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        )

    @cached_property
    def inner(self) -> Any:
        """The environment of the package."""
        return load(self.env_id, self.options or {})

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the prompt is a task of the environment.

        Raises:
            ValueError: it is not.
        """
        if self.env_id is None or not isinstance(prompt.meta.get("verifiers"), Mapping):
            raise ValueError("it is no task of verifiers: type data=verifiers data.env_id=NAME")

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Rolling:
        """Begin a rollout of the task of the prompt."""
        # loaded here: its constructor needs the main thread
        episode: Rolling = _run(self._start(self.inner, prompt))
        return episode

    async def _start(self, inner: Any, prompt: Prompt) -> Rolling:
        state = await inner.init_state(dict(prompt.meta["verifiers"]), _client(), "policy", {})
        state = await inner.setup_state(state) or state
        messages = await inner.get_prompt_messages(state)
        return Rolling(prompt, self, state, messages)


def _plain(message: Any, max_chars: int) -> dict[str, str]:
    return {"role": str(message["role"]), "content": to_text(message["content"], max_chars)}


def _response(turn: Turn) -> Any:
    """Return a turn as the response of a model."""
    from verifiers.legacy import types

    truncated = turn.finish == "length"
    message = types.ResponseMessage(
        content=turn.text, finish_reason="length" if truncated else "stop", is_truncated=truncated
    )
    return types.Response(id="", created=0, model="policy", message=message)


@cache
def _client() -> Any:
    """Return a client that is never asked: the policy is sampled by the rollout."""
    from verifiers.legacy.clients import Client

    methods = dict.fromkeys(Client.__abstractmethods__)
    return type("NoClient", (Client,), methods)(None)


@cache
def _loop(process_id: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of environments, which runs in a thread of its own; a forked child must
    not use its parent's."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine, from any thread."""
    return asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())).result()
