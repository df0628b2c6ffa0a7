"""Generated arithmetic questions."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Annotated, Any

from rlmods.data.schema import (
    Splits,
    check_choice,
    checked_splits,
    prompt_fields,
    render,
)
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

DIGIT = range(10)
TENS = range(10, 100)
UP_TO_99 = range(100)
UP_TO_999 = range(1000)
FACTOR = range(2, 10)


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

    level: int = 2
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
        num_questions, question_at = self._question_space()
        train = self._draw("train", self.num_train, num_questions, question_at)
        val = self._draw("val", self.num_val, num_questions, question_at)
        return checked_splits(train, val, "data=arithmetic")

    def _question_space(self) -> tuple[int, Callable[[int], str]]:
        """Return the number of questions of the level, and a function from an index to a
        question."""
        operators = "".join(dict.fromkeys(self.operations))
        pair = "{0}{1}{2}"
        spaces = {
            1: (pair, DIGIT, operators, DIGIT),
            2: (pair, UP_TO_99, operators, UP_TO_99),
            3: (pair, UP_TO_999, operators, UP_TO_999),
            4: (pair, TENS, "*", FACTOR),
            5: ("({0}{1}{2})*{3}", UP_TO_99, operators, UP_TO_99, FACTOR),
        }
        check_choice(self, "level", list(spaces))
        form, *slots = spaces[self.level]
        num_questions = math.prod(map(len, slots))

        def question_at(index: int) -> str:
            parts = []
            for slot in slots:
                index, i = divmod(index, len(slot))
                parts.append(slot[i])
            return str(form).format(*parts)

        return num_questions, question_at

    def _draw(
        self, split: str, max_questions: int, num_questions: int, question_at: Callable[[int], str]
    ) -> list[Prompt]:
        indices = _shuffled(num_questions, Random(f"{split}-{self.seed}"))
        own = (question for question in map(question_at, indices) if split_of(question) == split)
        questions = list(islice(own, max_questions))
        wrong_fraction = self.wrong_fraction if split == "train" else 0.0
        rng = Random(f"wrong-{self.seed}")
        wrong_rows = set(rng.sample(range(len(questions)), round(wrong_fraction * len(questions))))
        prompts = []
        for i, question in enumerate(questions):
            answer = _evaluate(question)
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


def _evaluate(question: str) -> int:
    # generated above: digits, operators and parentheses only
    return int(eval(question, {"__builtins__": {}}))
