"""Environments of OpenEnv servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import urlsplit

from environments import check_limits, describe, failed, observed, opened, seed_of

from rlmods.data.schema import import_extra
from rlmods.errors import UserError, check_bounds
from rlmods.grading.tool_worker import to_text
from rlmods.needs import EnvironmentNeeds
from rlmods.types import Prompt, Reply, Turn


@dataclass
class Session:
    """An episode of `OpenEnv`."""

    prompt: Prompt
    client: Any
    """Connection of this episode to the server."""
    environment: OpenEnv
    tools: Sequence[Any] = field(default=())

    @classmethod
    def begin(cls, environment: OpenEnv, prompt: Prompt, seed: int) -> Session:
        """Begin an episode from a seed."""
        client = environment.connect()
        text = environment.as_text(client.reset(seed=seed, **environment.options).observation)
        if environment.instruction:
            text = f"{environment.instruction}\n{text}"
        return cls(opened(prompt, to_text(text, environment.max_result_chars)), client, environment)

    def reply(self, turn: Turn) -> Reply:
        """Take the action of a turn."""
        max_chars = self.environment.max_result_chars
        try:
            result = self.client.step({self.environment.action: turn.text.strip()})
            reward = float(result.reward or 0.0)
            if result.done:
                self.client.close()
                return Reply(None, reward)
            return observed(self.environment.as_text(result.observation), reward, max_chars)
        except Exception as error:  # whatever a server answers, or does not, ends this episode only
            self.client.close()
            return failed(self.environment.url or "", error, max_chars)

    def end(self) -> Reply:
        """Close the connection of an episode that a limit ended."""
        self.client.close()
        return Reply(None)


@dataclass(frozen=True)
class OpenEnv:
    """The policy acts in an environment that an OpenEnv server runs, one action a turn
    (`data=episodes reward=environment`). The prompt of an episode is `instruction` and the
    observation of `reset(seed=...)`, with the seed of the prompt; an action is `{action: TURN}`.
    Rewards come from the steps; None counts as 0. Each response has a session of its own, so
    the server has to take as many at once as responses are sampled in an iteration
    (`max_concurrent_envs`).

    A server that answers with an error ends the episode without a score, and the error is recorded
    as a failed call (`train/tool_errors`). What is random must follow from the seed, or runs cannot
    be repeated.

    Raises: UserError for a missing package and a server that begins no episode; ValueError for a
    field out of range."""

    url: str | None = None
    """Address of the server, such as http://localhost:8000."""
    action: str = "message"
    """Field of an action that holds the text of the turn."""
    observation: str | None = None
    """Field of an observation that the policy reads; null: the whole observation, as JSON, or its
    only text."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `reset`, beside the seed."""
    instruction: str = ""
    """Text before the first observation."""
    timeout_s: float = 60.0
    """Time limit of an answer of the server."""
    max_turns: int = 20
    """Number of turns of the policy."""
    max_tokens: int = 2048
    """Maximum number of tokens of all turns and observations of a response."""
    max_result_chars: int = 4000
    """Characters of an observation."""

    needs: ClassVar[EnvironmentNeeds] = EnvironmentNeeds(copies=False)

    def __post_init__(self) -> None:
        check_limits(self)
        check_bounds(self, "environment", {"timeout_s": (self.timeout_s > 0, "above 0")})

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the server begins an episode, and that the prompt has a seed.

        Raises:
            UserError: there is no address, or the server begins none.
            ValueError: the prompt has no seed.
        """
        if self.url is None or urlsplit(self.url).scheme not in ("http", "https", "ws", "wss"):
            raise UserError(
                f"environment.url={self.url}: type the address of an OpenEnv server, "
                "environment.url=http://localhost:8000"
            )
        seed_of(prompt)
        if self._problem is not None:
            raise UserError(
                f"environment.url={self.url}: no episode begins: {self._problem}: start the "
                "server, or type another address"
            )

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Session:
        """Begin the episode of the prompt's seed: the same one for every response to it.

        Raises:
            UserError: the server begins none.
        """
        try:
            return Session.begin(self, prompt, seed_of(prompt))
        except Exception as error:  # of the server
            raise UserError(
                f"environment.url={self.url}: no episode begins: {describe(error)}: see the "
                "log of the server"
            ) from error

    def connect(self) -> Any:
        """Return a new connection to the server."""
        package = import_extra("openenv.core", "openenv", "environment=openenv")
        return package.GenericEnvClient(base_url=self.url, message_timeout_s=self.timeout_s).sync()

    def as_text(self, observation: Any) -> str:
        """Return what the policy reads of an observation.

        Raises:
            ValueError: it lacks the field `observation`.
        """
        if not isinstance(observation, dict):
            observation = {"observation": observation}
        fields = {name: value for name, value in observation.items() if name != "metadata"}
        if self.observation is not None:
            if self.observation not in fields:
                known = ", ".join(fields)
                raise ValueError(f"an observation has no field {self.observation}; fields: {known}")
            fields = {self.observation: fields[self.observation]}
        value = next(iter(fields.values())) if len(fields) == 1 else fields
        if isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, default=str)

    @cached_property
    def _problem(self) -> str | None:
        """Why no episode begins; None if one does."""
        import_extra("openenv.core", "openenv", "environment=openenv")
        try:
            Session.begin(self, Prompt(id="check", text=""), 0).end()
        except Exception as error:  # of the server
            return describe(error)
        return None
