"""A game for tests of memory over turns: find a thing by asking about its properties."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlmods.errors import check_bounds
from rlmods.types import Prompt, Reply, Turn

_WORD = re.compile(r"[a-z]+")


@dataclass
class Questions:
    """An episode of `TwentyQuestions`."""

    prompt: Prompt
    things: Mapping[str, Sequence[str]]
    """Properties by thing."""
    thing: str
    """The thing to be found."""
    turn_penalty: float
    tools: Sequence[Any] = field(default=())

    def reply(self, turn: Turn) -> Reply:
        """Answer the last thing or property that the turn names: 1 and the end for the thing
        itself, "yes" for a property that it has, "no" for other things and properties, and "no
        question" if the turn names none."""
        known = {*self.things, *(name for names in self.things.values() for name in names)}
        named = [word for word in _WORD.findall(turn.text.lower()) if word in known]
        if named and named[-1] == self.thing:
            return Reply(None, 1.0)
        text = (
            "no question" if not named else "yes" if named[-1] in self.things[self.thing] else "no"
        )
        return Reply([{"role": "user", "content": text}], -self.turn_penalty)


@dataclass(frozen=True)
class TwentyQuestions:
    """The policy finds a thing, the gold answer of the prompt (`data=hidden_thing`), by asking
    about properties, answered with "yes" or "no". The reward is 1 for naming the thing, and
    `-turn_penalty` for each other turn (`reward=environment`).

    Questions that halve the things which are left find one of n in about log2(n) + 1 turns; without
    a memory of the replies, naming things takes n on average.

    Raises: ValueError for a field out of range, or a prompt without a thing to be found."""

    max_turns: int = 20
    """Number of questions, the last one included, which names the thing."""
    max_tokens: int = 128
    """Maximum number of tokens of all questions and replies."""
    turn_penalty: float = 0.0
    """Penalty of a turn that does not name the thing; 0 or more."""

    needs_answer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rules = {
            "max_turns": (self.max_turns >= 1, "at least 1"),
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "turn_penalty": (self.turn_penalty >= 0, "0 or more"),
        }
        check_bounds(self, "environment", rules)

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the prompt has things, one of which is its gold answer.

        Raises:
            ValueError: it has not.
        """
        things = prompt.meta.get("things")
        if (
            not isinstance(things, Mapping)
            or not all(isinstance(names, list) for names in things.values())
            or prompt.answer not in things
        ):
            raise ValueError(
                f"its answer {prompt.answer!r} is no thing of a game: type data=hidden_thing"
            )

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Questions:
        """Begin a game. Nothing in it is random."""
        self.check_prompt(prompt)
        return Questions(prompt, prompt.meta["things"], prompt.answer or "", self.turn_penalty)
