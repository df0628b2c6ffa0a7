"""Environments of the gymnasium package with text or whole numbers as observations and actions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from environments import check_limits, describe, failed, observed, opened, seed_of

from rlmods.data.schema import import_extra
from rlmods.environment.guess_number import last_number
from rlmods.errors import UserError
from rlmods.grading.tool_worker import to_text
from rlmods.needs import EnvironmentNeeds
from rlmods.types import Prompt, Reply, Turn


@dataclass
class Acting:
    """An episode of `Gymnasium`."""

    prompt: Prompt
    inner: Any
    """The environment of the package."""
    environment: Gymnasium
    tools: Sequence[Any] = field(default=())

    @classmethod
    def begin(cls, environment: Gymnasium, prompt: Prompt, seed: int) -> Acting:
        """Begin an episode from a seed."""
        inner = environment.make()
        observation, _ = inner.reset(seed=seed)
        text = as_text(observation)
        if environment.instruction:
            text = f"{environment.instruction}\n{text}"
        return cls(opened(prompt, to_text(text, environment.max_result_chars)), inner, environment)

    def reply(self, turn: Turn) -> Reply:
        """Take the action of a turn. A turn without an action of the action space is told so, with
        `invalid_reward`."""
        max_chars = self.environment.max_result_chars
        try:
            action = read_action(turn.text, self.inner.action_space)
            if action is None:
                return observed("no valid action", self.environment.invalid_reward, max_chars)
            observation, reward, terminated, truncated, _ = self.inner.step(action)
            if terminated or truncated:
                self.inner.close()
                return Reply(None, float(reward))
            return observed(as_text(observation), float(reward), max_chars)
        except Exception as error:  # whatever an environment raises ends this episode only
            return failed(self.environment.env_id, error, max_chars)


@dataclass(frozen=True)
class Gymnasium:
    """The policy acts in an environment of the package gymnasium, one action a turn (`data=episodes
    reward=environment`). The prompt of an episode is `instruction` and the observation of
    `reset(seed=...)`, with the seed of the prompt.

    Actions are texts (`spaces.Text`: the whole turn, without white space around it) or whole
    numbers (`spaces.Discrete`: the last one of the turn). Observations that are not text are
    written as JSON. Rewards come from the steps.

    An environment that raises an exception ends the episode without a score, and the exception is
    recorded as a failed call (`train/tool_errors`).

    Raises: UserError for a missing package, an unknown environment and other actions; ValueError
    for a field out of range."""

    env_id: str = "FrozenLake-v1"
    """Name of the environment in the package's registry, or "module:NAME" to import the module that
    registers it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment, as in `+environment.options.is_slippery=false`."""
    instruction: str = ""
    """Text before the first observation."""
    invalid_reward: float = 0.0
    """Reward of a turn without a valid action."""
    max_turns: int = 20
    """Number of turns of the policy."""
    max_tokens: int = 1024
    """Maximum number of tokens of all turns and observations of a response."""
    max_result_chars: int = 4000
    """Characters of an observation."""

    needs: ClassVar[EnvironmentNeeds] = EnvironmentNeeds(copies=False)

    def __post_init__(self) -> None:
        check_limits(self)

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the environment exists and that the prompt has a seed.

        Raises:
            UserError: there is no such environment, no episode begins, or its actions are neither
            texts nor whole numbers.
            ValueError: the prompt has no seed.
        """
        seed_of(prompt)
        if self._problem is not None:
            raise UserError(
                f"environment.env_id={self.env_id}: {self._problem}: type another "
                "environment.env_id="
            )

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Acting:
        """Begin the episode of the prompt's seed: the same one for every response to it."""
        return Acting.begin(self, prompt, seed_of(prompt))

    def make(self) -> Any:
        """Return a new environment.

        Raises:
            UserError: there is no such environment, or it does not take the options.
        """
        package = import_extra("gymnasium", "gymnasium", "environment=gymnasium")
        module, _, name = self.env_id.rpartition(":")
        try:
            if module:
                import_module(module)
            return package.make(name, **self.options)
        except Exception as error:
            raise UserError(
                f"environment.env_id={self.env_id}: {describe(error)}: type "
                "environment.env_id=FrozenLake-v1"
            ) from error

    @cached_property
    def _problem(self) -> str | None:
        """Why the policy cannot act in the environment; None if it can."""
        kind = type(self.make().action_space).__name__
        if kind not in ("Text", "Discrete"):
            return f"its actions are {kind}, and the policy writes Text or Discrete"
        try:
            Acting.begin(self, Prompt(id="check", text=""), 0)
        except Exception as error:  # of the environment
            return f"no episode begins: {describe(error)}"
        return None


def read_action(text: str, space: Any) -> Any:
    """Return the action that a text names; None if there is none in the space."""
    if type(space).__name__ == "Text":
        return text.strip() if space.contains(text.strip()) else None
    number = last_number(text)
    if number is None or not space.start <= number < space.start + space.n:
        return None
    return number


def as_text(observation: Any) -> str:
    """Return an observation as text: JSON for numbers and arrays."""
    if isinstance(observation, str):
        return observation
    return json.dumps(observation, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return the value of a NumPy number or array as Python has it; the text of other values."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
