"""Generated arithmetic questions."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal

from rlmods.data.schema import Splits, checked_splits, prompt_fields, render
from rlmods.data.solutions import (
    MAX_CANDIDATES,
    mistakes,
    ranked_candidates,
    solution_with_error,
    split_of,
    worked_solution,
)
from rlmods.errors import UserError
from rlmods.settings.bounds import Count, Fraction, NonNegativeInt, between, bounded
from rlmods.types import Prompt

Level = Literal[1, 2, 3, 4, 5]
OPERANDS = {
    1: (range(10), range(10)),
    2: (range(100), range(100)),
    3: (range(1000), range(1000)),
    4: (range(10, 100), range(2, 10)),
    5: (range(100), range(100), range(2, 10)),
}
"""Values of the numbers of a question, by level."""


@dataclass(frozen=True)
@bounded("data")
class Arithmetic:
    """Generated questions with a whole number as the answer, by level:

    ===== ============== =========================== =====================
    level question       operands                    questions ("+-")
    ===== ============== =========================== =====================
    1     a op b         0 to 9                      200
    2     a op b         0 to 99                     20 000
    3     a op b         0 to 999                    2 000 000
    4     a*b            10 to 99, 2 to 9            720
    5     (a op b)*c     0 to 99, 0 to 99, 2 to 9    160 000
    ===== ============== =========================== =====================

    A hash of the question assigns it to train or val, independent of seed and level: a policy
    warm-started with one seed has never seen the val questions of another. Raises: UserError for a
    field out of range, and for a template with unknown names."""

    level: Level = 2
    """Difficulty, 1 to 5."""
    operations: str = "+-"
    """Operators for `op`, a subset of `+-*`. Level 4 only multiplies."""
    num_train: Count = 10_000
    """Maximum number of train questions; all of the split if there are fewer (a fifth of the
    table's last column is val)."""
    num_val: NonNegativeInt = 200
    """Maximum number of val questions."""
    seed: int = 0
    """Seed for the choice and order of questions; independent of the run's seed, so that runs with
    different seeds share a data set."""
    template: str = "{question}="
    """Text of the prompt."""
    response: str = "<answer>{answer}</answer>"
    """Text of a good response, `meta["response"]`: the target of `algo=sft`."""
    wrong_fraction: Fraction = 0.0
    """Fraction of train responses with a plausible wrong answer, so that a policy warm-started on
    them has room to improve."""
    num_candidates: Annotated[int, between(1, MAX_CANDIDATES)] = 2
    """Number of responses to compare, 1 to 9: `meta["candidates"]`, exactly one of them correct,
    and `ranks`: 0 for that one, then by distance from the answer. 1: a single response, correct
    half of the time."""
    wrong_steps: Fraction = 0.5
    """Fraction of worked solutions, `meta["steps"]`, with a wrong step; `step_labels` are 1 before
    it and 0 from it on."""
    chat: bool = False
    """Put the question in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        if not self.operations or set(self.operations) - set("+-*"):
            raise UserError(
                f"data.operations={self.operations}: choose from + - *, as in data.operations=+-"
            )
        if self._response("", 1) == self._response("", 2):
            raise UserError(f"data.response={self.response}: must state the {{answer}}")
        train = self._draw("train", self.num_train)
        val = self._draw("val", self.num_val)
        return checked_splits(train, val, "data=arithmetic")

    def _questions(self, split: str, max_questions: int) -> list[str]:
        """Return different questions of a split, in random order."""
        operators = "*" if self.level == 4 else "".join(dict.fromkeys(self.operations))
        first, second, *factor = OPERANDS[self.level]
        slots = (first, operators, second, *factor)
        form = "({0}{1}{2})*{3}" if factor else "{0}{1}{2}"
        questions: list[str] = []
        for number in _shuffled(math.prod(map(len, slots)), Random(f"{split}-{self.seed}")):
            if len(questions) == max_questions:
                break
            rest = number
            parts = []
            for slot in slots:
                rest, i = divmod(rest, len(slot))
                parts.append(slot[i])
            question = form.format(*parts)
            if split_of(question) == split:
                questions.append(question)
        return questions

    def _draw(self, split: str, max_questions: int) -> list[Prompt]:
        questions = self._questions(split, max_questions)
        wrong_fraction = self.wrong_fraction if split == "train" else 0.0
        rng = Random(f"wrong-{self.seed}")
        wrong_rows = set(rng.sample(range(len(questions)), round(wrong_fraction * len(questions))))
        prompts = []
        for i, question in enumerate(questions):
            # generated above: digits, operators and parentheses only
            answer = int(eval(question, {"__builtins__": {}}))
            stated = rng.choice(mistakes(answer)) if i in wrong_rows else answer
            meta = {"level": self.level, "response": self._response(question, stated)}
            meta |= self._annotations(question, answer)
            content = render(self.template, {"question": question}, "template")
            shown = prompt_fields(content, self.chat)
            prompt_id = f"arithmetic-{self.level}-{split}-{question}"
            prompts.append(Prompt(id=prompt_id, answer=str(answer), meta=meta, **shown))
        return prompts

    def _response(self, question: str, answer: int) -> str:
        return render(self.response, {"answer": answer, "question": question}, "response")

    def _annotations(self, question: str, answer: int) -> dict[str, Any]:
        """Return the data of reward models and preference losses, a function of question and seed
        only."""
        rng = Random(f"steps-{self.seed}-{question}")
        if rng.random() < self.wrong_steps:
            steps, labels = solution_with_error(question, rng)
        else:
            steps = worked_solution(question)
            labels = (1.0,) * len(steps)
        answers, ranks = ranked_candidates(
            answer, self.num_candidates, Random(f"candidates-{self.seed}-{question}")
        )
        candidates = tuple(self._response(question, x) for x in answers)
        return {
            "candidates": candidates,
            "ranks": tuple(ranks),
            "steps": steps,
            "step_labels": labels,
        }


def _shuffled(size: int, rng: Random) -> Iterator[int]:
    """Yield every index below `size` once, in random order: a lazy Fisher-Yates shuffle."""
    swapped: dict[int, int] = {}
    for i in range(size):
        j = rng.randrange(i, size)
        yield swapped.get(j, j)
        swapped[j] = swapped.get(i, i)
