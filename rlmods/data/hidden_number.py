"""Prompts of a game: guess a number."""

from dataclasses import dataclass, replace
from random import Random

from rlmods.data.schema import Splits, checked_splits, prompt_fields, render
from rlmods.errors import UserError
from rlmods.settings.bounds import Count, Fraction, NonNegativeInt, bounded
from rlmods.types import Prompt


@dataclass(frozen=True)
@bounded("data")
class HiddenNumber:
    """Prompts that ask for a whole number from `low` to `high`, which is the gold answer and not in
    the prompt. It is to be found by guessing, with `environment=guess_number`. Every number occurs
    equally often, up to one, in train and in val.

    With `demonstrations`, the train rows are targets of `algo=sft` instead, in `meta["response"]`:
    the next guess after 0 to 3 guesses and replies. A policy trained on them plays by the rules and
    often forgets what it was told.

    Raises: UserError for a field out of range, and for a template with unknown names."""

    low: int = 0
    """Smallest number."""
    high: int = 9
    """Largest number."""
    num_train: Count = 1000
    """Number of train prompts."""
    num_val: NonNegativeInt = 100
    """Number of val prompts."""
    seed: int = 0
    """Seed of the order of the numbers."""
    template: str = "Guess {low} to {high}:"
    """Text of the prompt."""
    chat: bool = False
    """Put the text in a user message, for models with a chat template."""
    demonstrations: bool = False
    """Train on demonstrations of guesses."""
    bisection_fraction: Fraction = 0.3
    """Fraction of demonstrated guesses that halve what the replies so far have left; the others are
    any number."""

    def __call__(self) -> Splits:
        if not self.low < self.high:
            raise UserError(f"data.high={self.high}: must be above data.low={self.low}")
        content = render(self.template, {"low": self.low, "high": self.high}, "template")

        def prompts(split: str, count: int) -> list[Prompt]:
            numbers = [self.low + i % (self.high - self.low + 1) for i in range(count)]
            Random(f"{split}-{self.seed}").shuffle(numbers)
            fields = prompt_fields(content, self.chat)
            return [
                Prompt(id=f"hidden-number-{split}-{i}", answer=str(n), **fields)
                for i, n in enumerate(numbers)
            ]

        train = prompts("train", self.num_train)
        if self.demonstrations:
            train = [self._demonstration(prompt, content) for prompt in train]
        return checked_splits(train, prompts("val", self.num_val), "data=hidden_number")

    def _demonstration(self, prompt: Prompt, text: str) -> Prompt:
        """Return the beginning of a game as a prompt, with the next guess as its response."""
        random = Random(f"game-{self.seed}-{prompt.id}")
        number = int(prompt.answer or "")
        low, high = self.low, self.high
        for _ in range(random.randint(0, 3)):
            guess = self._guess(low, high, random)
            if guess == number:
                break
            if guess < number:
                reply, low = "higher", max(low, guess + 1)
            else:
                reply, high = "lower", min(high, guess - 1)
            text += f"{guess}\n{reply}\n"
        response = str(self._guess(low, high, random))
        return replace(prompt, text=text, messages=None, meta={"response": response})

    def _guess(self, low: int, high: int, random: Random) -> int:
        if random.random() < self.bisection_fraction:
            return (low + high) // 2
        return random.randint(self.low, self.high)
