"""Single-player games of the textarena package."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from environments import check_limits, describe, failed, observed, opened, seed_of

from rlmods.data.schema import import_extra
from rlmods.errors import UserError
from rlmods.grading.tool_worker import to_text
from rlmods.types import Prompt, Reply, Turn

_LOCK = threading.Lock()


@dataclass
class Playing:
    """An episode of `TextArena`."""

    prompt: Prompt
    game: Any
    """The game without wrappers."""
    environment: TextArena
    generators: Any
    """States of the global generators of this game."""
    tools: Sequence[Any] = field(default=())

    @classmethod
    def begin(cls, environment: TextArena, prompt: Prompt, seed: int) -> Playing:
        """Begin a game from a seed."""
        episode = cls(prompt, environment.make(), environment, _seeded(seed))
        with episode._generators():
            episode.game.reset(num_players=1, seed=seed)
        episode.prompt = opened(
            prompt, to_text(episode._observation(), environment.max_result_chars)
        )
        return episode

    def reply(self, turn: Turn) -> Reply:
        """Give the turn to the game. The turn that ends the game gets its reward."""
        max_chars = self.environment.max_result_chars
        try:
            with self._generators():
                done, _ = self.game.step(action=turn.text)
            if done:
                rewards, _ = self.game.close()
                return Reply(None, float(rewards[0]))
            return observed(self._observation(), 0.0, max_chars)
        except Exception as error:  # whatever a game raises ends this game only
            return failed(self.environment.game, error, max_chars)

    def _observation(self) -> str:
        """Return what the game has said since the last turn, without the turn itself."""
        player, messages = self.game.get_observation()
        return "\n".join(str(text) for sender, text, _ in messages if sender != player)

    @contextmanager
    def _generators(self) -> Iterator[None]:
        """Let the game draw from its own generator states: games use the global generators of
        `random` and NumPy."""
        with _LOCK:
            outer = _states()
            _restore(self.generators)
            try:
                yield
            finally:
                self.generators = _states()
                _restore(outer)


@dataclass(frozen=True)
class TextArena:
    """The policy plays a single-player game of the package textarena, such as GuessTheNumber-v0,
    one move a turn (`data=episodes reward=environment`). The prompt of an episode is the opening of
    the game with the seed of the prompt; observations are the messages of the game since the last
    turn, without wrappers, which repeat earlier ones. The game's reward is given for the turn
    that ends it.

    A game that raises an exception ends without a score, and the exception is recorded as a failed
    call (`train/tool_errors`).

    Raises: UserError for a missing package, an unknown game and one of several players; ValueError
    for a field out of range."""

    game: str = "GuessTheNumber-v0"
    """Name of the game in the package."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the game, as in `+environment.options.max_number=10`."""
    max_turns: int = 20
    """Number of turns of the policy."""
    max_tokens: int = 2048
    """Maximum number of tokens of all turns and observations of a response."""
    max_result_chars: int = 4000
    """Characters of an observation."""

    def __post_init__(self) -> None:
        check_limits(self)

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the game exists and that the prompt has a seed.

        Raises:
            UserError: there is no such game, or it cannot be played alone.
            ValueError: the prompt has no seed.
        """
        seed_of(prompt)
        if self._problem is not None:
            raise UserError(
                f"environment.game={self.game}: {self._problem}: type "
                "environment.game=GuessTheNumber-v0"
            )

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Playing:
        """Begin the game of the prompt's seed: the same one for every response to it."""
        return Playing.begin(self, prompt, seed_of(prompt))

    def make(self) -> Any:
        """Return a new game without wrappers.

        Raises:
            UserError: there is no such game, or it does not take the options.
        """
        package = import_extra("textarena", "textarena", "environment=textarena")
        try:
            game = package.make(env_id=self.game, **self.options)
        except Exception as error:
            raise UserError(
                f"environment.game={self.game}: {describe(error)}: type "
                "environment.game=GuessTheNumber-v0"
            ) from error
        while isinstance(game, package.Wrapper):
            game = game.env
        return game

    @cached_property
    def _problem(self) -> str | None:
        """Why no game of one player begins; None if one does."""
        self.make()
        try:
            Playing.begin(self, Prompt(id="check", text=""), 0)
        except Exception as error:  # of the game
            return f"no game of one player begins: {describe(error)}"
        return None


def _seeded(seed: int) -> Any:
    """Return generator states from a seed."""
    return random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()


def _states() -> Any:
    return random.getstate(), np.random.get_state()


def _restore(states: Any) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
