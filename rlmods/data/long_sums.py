"""Sums too long for a small policy to compute by itself."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from rlmods.data.mistakes import mistakes
from rlmods.data.schema import Splits, check_count, check_fraction, checked_splits
from rlmods.errors import UserError
from rlmods.types import Prompt

CALL, RESULT, ANSWER = "<calculator>{}</calculator>", "<result>{}</result>", "<answer>{}</answer>"


@dataclass(frozen=True)
class LongSums:
    """Sums and differences of two numbers of many digits, as plain text, which a small policy
    solves only with a calculator (`environment=tools`).

    With `demonstrations`, the train rows are targets of `algo=sft` instead, in `meta["response"]`:
    half of them are first turns, of which `call_fraction` call the calculator and the others answer
    wrongly, and half are answers after the result of a call. A policy trained on them can use the
    tool and often forgets to. Raises: UserError for a field out of range."""

    digits: int = 5
    """Number of digits of both numbers."""
    num_train: int = 10_000
    """Number of train prompts."""
    num_val: int = 200
    """Number of val prompts."""
    demonstrations: bool = False
    """Train on demonstrations of calls."""
    call_fraction: float = 0.3
    """Fraction of demonstrated first turns that call the calculator."""
    seed: int = 0
    """Seed of the numbers; independent of the run's seed."""

    def __call__(self) -> Splits:
        check_count("digits", self.digits, 1, 15)
        check_count("num_train", self.num_train, 1)
        check_count("num_val", self.num_val, 0)
        check_fraction("call_fraction", self.call_fraction)
        if self.num_train + self.num_val > (space := 2 * (9 * 10 ** (self.digits - 1)) ** 2) // 2:
            raise UserError(
                f"data.digits={self.digits}: there are only {space} questions: type a smaller "
                "data.num_train"
            )
        random, questions = Random(f"long-sums-{self.digits}-{self.seed}"), dict[str, int]()
        while len(questions) < self.num_train + self.num_val:
            a, b = (random.randrange(10 ** (self.digits - 1), 10**self.digits) for _ in range(2))
            sign = random.choice((1, -1))
            questions[f"{a}{'+' if sign > 0 else '-'}{b}"] = a + sign * b
        rows = list(questions.items())
        val = [self._prompt("val", *row) for row in rows[: self.num_val]]
        shown = self._demonstration if self.demonstrations else self._prompt
        return checked_splits(
            [shown("train", *row) for row in rows[self.num_val :]], val, "data=long_sums"
        )

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
        random, call = Random(f"{question}-{self.seed}"), CALL.format(question)
        if random.random() < 0.5:
            return self._prompt(
                split,
                question,
                answer,
                f"{call}\n{RESULT.format(answer)}\n",
                response=ANSWER.format(answer),
            )
        calls = random.random() < self.call_fraction
        return self._prompt(
            split,
            question,
            answer,
            response=call if calls else ANSWER.format(random.choice(mistakes(answer))),
        )
