"""Prompts of a game: guess a number."""

from dataclasses import dataclass
from random import Random

from rlmods.data.schema import Splits, check_fields, checked_splits, prompt_fields, render
from rlmods.errors import UserError
from rlmods.types import Prompt


@dataclass(frozen=True)
class HiddenNumber:
    """Prompts that ask for a whole number from `low` to `high`, which is the gold answer and not in
    the prompt. It is to be found by guessing, with `environment=guess_number`. Every number occurs
    equally often, up to one, in train and in val.

    Raises: UserError for a field out of range, and for a template with unknown names."""

    low: int = 0
    """Smallest number."""
    high: int = 9
    """Largest number."""
    num_train: int = 1000
    """Number of train prompts."""
    num_val: int = 100
    """Number of val prompts."""
    seed: int = 0
    """Seed of the order of the numbers."""
    template: str = "Guess {low} to {high}:"
    """Text of the prompt."""
    chat: bool = False
    """Put the text in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        check_fields(self, num_train=1, num_val=0)
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

        return checked_splits(
            prompts("train", self.num_train), prompts("val", self.num_val), "data=hidden_number"
        )
