"""Generated arithmetic: the data set that is always there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from rlmods.data.mistakes import MOST, mistakes, ranked
from rlmods.data.schema import Splits, ask, checked, count, fraction, refuse, render
from rlmods.data.worked import slipped, worked
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
    num_candidates: int = 2
    """Responses to compare, 1 to 9: `meta["candidates"]`, exactly one of them right, with its `ranks`: 0 for that one, then by distance
    from the answer. 1: a single response, half of them right."""
    wrong_steps: float = 0.5
    """Share of worked solutions, `meta["steps"]`, with a wrong step in them; `step_labels` are 1 before it and 0 from it on."""
    chat: bool = False
    """Ask in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        count("num_train", self.num_train, 1)
        count("num_val", self.num_val, 0)
        if not self.operations or set(self.operations) - set("+-*"):
            raise UserError(f"data.operations={self.operations}: choose from + - *, as in data.operations=+-")
        fraction("wrong_fraction", self.wrong_fraction)
        fraction("wrong_steps", self.wrong_steps)
        count("num_candidates", self.num_candidates, 1, MOST)
        if self._response("", 1) == self._response("", 2):
            raise UserError(f"data.response={self.response}: must state the {{answer}}")
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
            stated = rng.choice(mistakes(answer)) if i in wrong else answer
            meta = {"level": self.level, "response": self._response(q, stated), **self._judged(q, answer)}
            asked = ask(render(self.template, {"question": q}, "template"), self.chat)
            prompts.append(Prompt(id=f"arithmetic-{self.level}-{split}-{q}", answer=str(answer), meta=meta, **asked))
        return prompts

    def _response(self, question: str, answer: int) -> str:
        return render(self.response, {"answer": answer, "question": question}, "response")

    def _judged(self, question: str, answer: int) -> dict[str, Any]:
        """What reward models and preference losses learn from, decided by question and seed alone."""
        rng = Random(f"steps-{self.seed}-{question}")
        slips = rng.random() < self.wrong_steps
        steps, labels = slipped(question, rng) if slips else ((right := worked(question)), (1.0,) * len(right))
        stated, ranks = ranked(answer, self.num_candidates, Random(f"candidates-{self.seed}-{question}"))
        candidates = tuple(self._response(question, x) for x in stated)
        return {"candidates": candidates, "ranks": tuple(ranks), "steps": steps, "step_labels": labels}


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
