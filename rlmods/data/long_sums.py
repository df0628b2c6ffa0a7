"""Sums too long for a small policy to compute by itself."""

from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

from rlmods.data.schema import Splits, checked_splits
from rlmods.data.solutions import mistakes
from rlmods.errors import UserError
from rlmods.settings.bounds import Count, Fraction, NonNegativeInt, between, bounded
from rlmods.types import Prompt


@dataclass(frozen=True)
@bounded("data")
class LongSums:
    """Sums and differences of two numbers of many digits, as plain text, which a small policy
    solves only with a calculator (`environment=tools`).

    With `demonstrations`, the train rows are targets of `algo=sft` instead, in `meta["response"]`.
    Half of them are first turns: a fraction `call_fraction` calls the calculator, the others answer
    wrongly. The other half are answers after the result of a call. A policy trained on them can use
    the tool and often forgets to. Raises: UserError for a field out of range."""

    digits: Annotated[int, between(1, 15)] = 5
    """Number of digits of both numbers."""
    num_train: Count = 10_000
    """Number of train prompts."""
    num_val: NonNegativeInt = 200
    """Number of val prompts."""
    demonstrations: bool = False
    """Train on demonstrations of calls."""
    call_fraction: Fraction = 0.3
    """Fraction of demonstrated first turns that call the calculator."""
    seed: int = 0
    """Seed of the numbers; independent of the run's seed."""

    def __call__(self) -> Splits:
        low = 10 ** (self.digits - 1)
        high = 10**self.digits
        num_questions = 2 * (high - low) ** 2
        total = self.num_train + self.num_val
        if total > num_questions // 2:
            raise UserError(
                f"data.digits={self.digits}: there are only {num_questions} questions: type a "
                "smaller data.num_train"
            )
        random = Random(f"long-sums-{self.digits}-{self.seed}")
        questions: dict[str, int] = {}
        while len(questions) < total:
            a = random.randrange(low, high)
            b = random.randrange(low, high)
            sign = random.choice((1, -1))
            questions[f"{a}{'+' if sign > 0 else '-'}{b}"] = a + sign * b
        rows = list(questions.items())
        val = [self._prompt("val", *row) for row in rows[: self.num_val]]
        shown = self._demonstration if self.demonstrations else self._prompt
        train = [shown("train", *row) for row in rows[self.num_val :]]
        return checked_splits(train, val, "data=long_sums")

    def _prompt(
        self, split: str, question: str, answer: int, text: str = "", **meta: Any
    ) -> Prompt:
        return Prompt(
            id=f"long-sums-{split}-{question}",
            text=f"{question}={text}",
            answer=str(answer),
            meta=meta,
        )

    def _demonstration(self, split: str, question: str, answer: int) -> Prompt:
        random = Random(f"{question}-{self.seed}")
        call = f"<calculator>{question}</calculator>"
        if random.random() < 0.5:
            seen = f"{call}\n<result>{answer}</result>\n"
            right = f"<answer>{answer}</answer>"
            return self._prompt(split, question, answer, seen, response=right)
        if random.random() < self.call_fraction:
            return self._prompt(split, question, answer, response=call)
        wrong = f"<answer>{random.choice(mistakes(answer))}</answer>"
        return self._prompt(split, question, answer, response=wrong)
