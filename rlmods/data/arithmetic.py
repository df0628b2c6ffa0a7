"""Generated arithmetic: the data set that is always there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from rlmods.data.schema import Splits, ask, checked, count, refuse, render
from rlmods.types import Prompt, UserError

DIGIT, TENS, UP_TO_99, UP_TO_999, FACTOR = range(10), range(10, 100), range(100), range(1000), range(2, 10)
VAL_SHARE = 5
"""One question in so many belongs to val."""


@dataclass(frozen=True)
class Arithmetic:
    """Questions with one whole number as the answer, by level:

    ===== ============== =========================== =====================
    level question       operands                    questions ("+-")
    ===== ============== =========================== =====================
    1     a op b         0 to 9                      200
    2     a op b         0 to 99                     20 000
    3     a op b         0 to 999                    2 000 000
    4     a*b            10 to 99, 2 to 9            720
    5     (a op b)*c     0 to 99, 0 to 99, 2 to 9    160 000
    ===== ============== =========================== =====================

    A question belongs to train or to val by its own hash, at every seed and level: a policy warm-started with one seed has never seen the
    val questions of another. Raises: UserError for a field out of range, and for a template with unknown names."""

    level: int = 2
    """Difficulty, 1 to 5."""
    operations: str = "+-"
    """The operators `op` stands for, out of `+-*`. Level 4 only multiplies."""
    num_train: int = 10_000
    """At most so many questions; all of the split where there are fewer (a fifth of the table's last column is val)."""
    num_val: int = 200
    """At most so many questions."""
    seed: int = 0
    """Which questions are drawn, and in which order. Not the run's seed: runs that differ in that share one data set."""
    template: str = "{question}="
    """The prompt."""
    response: str = "<answer>{answer}</answer>"
    """A good response, `meta["response"]`: what `algo=sft` imitates."""
    wrong_fraction: float = 0.0
    """Share of train responses that state a plausible wrong answer, so that a warm-started policy leaves something to learn."""
    chat: bool = False
    """Ask in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        count("num_train", self.num_train, 1)
        count("num_val", self.num_val, 0)
        if not self.operations or set(self.operations) - set("+-*"):
            raise UserError(f"data.operations={self.operations}: choose from + - *, as in data.operations=+-")
        if not 0 <= self.wrong_fraction <= 1:
            raise UserError(f"data.wrong_fraction={self.wrong_fraction}: must lie between 0 and 1")
        size, question = self._space()
        train = self._draw("train", self.num_train, size, question)
        val = self._draw("val", self.num_val, size, question)
        return checked(train, val, "data=arithmetic")

    def _space(self) -> tuple[int, Callable[[int], str]]:
        """How many questions the level has, and the i-th."""
        operators = "".join(dict.fromkeys(self.operations))
        pair = "{0}{1}{2}"
        spaces = {
            1: (pair, DIGIT, operators, DIGIT),
            2: (pair, UP_TO_99, operators, UP_TO_99),
            3: (pair, UP_TO_999, operators, UP_TO_999),
            4: (pair, TENS, "*", FACTOR),
            5: ("({0}{1}{2})*{3}", UP_TO_99, operators, UP_TO_99, FACTOR),
        }
        if self.level not in spaces:
            refuse("level", self.level, list(spaces))
        form, *slots = spaces[self.level]
        size = 1
        for slot in slots:
            size *= len(slot)

        def question(index: int) -> str:
            picks = []
            for slot in slots:
                index, pick = divmod(index, len(slot))
                picks.append(slot[pick])
            return str(form).format(*picks)

        return size, question

    def _draw(self, split: str, most: int, size: int, question: Callable[[int], str]) -> list[Prompt]:
        indices = _shuffled(size, Random(f"{split}-{self.seed}"))
        questions = list(islice((q for q in map(question, indices) if _split(q) == split), most))
        share = self.wrong_fraction if split == "train" else 0.0
        rng = Random(f"wrong-{self.seed}")
        wrong = set(rng.sample(range(len(questions)), round(share * len(questions))))
        prompts = []
        for i, q in enumerate(questions):
            answer = _evaluate(q)
            stated = _mistake(answer, rng) if i in wrong else answer
            meta = {"level": self.level, "response": render(self.response, {"answer": stated, "question": q}, "response")}
            asked = ask(render(self.template, {"question": q}, "template"), self.chat)
            prompts.append(Prompt(id=f"arithmetic-{self.level}-{split}-{q}", answer=str(answer), meta=meta, **asked))
        return prompts


def _split(question: str) -> str:
    return "train" if hashlib.sha256(question.encode()).digest()[0] % VAL_SHARE else "val"


def _shuffled(size: int, rng: Random) -> Iterator[int]:
    """Every index below `size` once, in random order, as lazily as it is read."""
    moved: dict[int, int] = {}
    for i in range(size):
        j = rng.randrange(i, size)
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)


def _evaluate(question: str) -> int:
    return int(eval(question, {"__builtins__": {}}))  # our own text: digits, operators and parentheses


def _mistake(answer: int, rng: Random) -> int:
    """Off by one, off by ten, or two digits swapped."""
    sign, digits = (-1 if answer < 0 else 1), str(abs(answer))
    swapped = sign * int(digits[:-2] + digits[:-3:-1])
    return rng.choice([x for x in (answer - 1, answer + 1, answer - 10, answer + 10, swapped) if x != answer])
