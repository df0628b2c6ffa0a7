"""A game for tests of learning over turns: guess a number, and be told whether it is higher or
lower."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlmods.settings.bounds import Count, NonNegative, bounded
from rlmods.types import Prompt, Reply, Turn

_NUMBER = re.compile(r"(?<!\d)(?<!\d\.)-?\d{1,9}(?!\d|\.\d)")


@dataclass
class Guessing:
    """An episode of `GuessNumber`."""

    prompt: Prompt
    number: int
    turn_penalty: float
    tools: Sequence[Any] = field(default=())

    def reply(self, turn: Turn) -> Reply:
        """Answer a guess, the last whole number of the turn: 1 and the end if it is right, else
        "higher", "lower" or "no number"."""
        guess = last_number(turn.text)
        if guess == self.number:
            return Reply(None, 1.0)
        if guess is None:
            text = "no number"
        elif guess < self.number:
            text = "higher"
        else:
            text = "lower"
        return Reply([{"role": "user", "content": text}], -self.turn_penalty)


@dataclass(frozen=True)
@bounded("environment")
class GuessNumber:
    """The policy guesses the number that is the gold answer of the prompt (`data=hidden_number`).
    The reply to a wrong guess is "higher" or "lower". The reward is 1 for the right guess, and
    `-turn_penalty` for each other turn (`reward=environment`).

    With bisection, a number of n candidates takes at most log2(n) + 1 guesses; without a memory of
    the replies it takes n on average.

    Raises: ValueError for a field out of range, or a gold answer that is not a whole number."""

    max_turns: Count = 5
    """Number of guesses."""
    max_tokens: Count = 128
    """Maximum number of tokens of all guesses and replies."""
    turn_penalty: NonNegative = 0.0
    """Penalty of a turn that does not name the number."""

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the gold answer is a whole number.

        Raises:
            ValueError: it is not.
        """
        if prompt.answer is None or not re.fullmatch(r"-?\d{1,9}", prompt.answer.strip()):
            raise ValueError(
                f"its answer {prompt.answer!r} is not a whole number: type data=hidden_number"
            )

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Guessing:
        """Begin a game. Nothing in it is random."""
        self.check_prompt(prompt)
        return Guessing(prompt, int(prompt.answer or ""), self.turn_penalty)


def last_number(text: str) -> int | None:
    """Return the last whole number of at most 9 digits in a text; None if there is none. Digits of
    a longer or of a decimal number do not count."""
    numbers = _NUMBER.findall(text)
    return int(numbers[-1]) if numbers else None
