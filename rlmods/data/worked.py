"""Arithmetic questions with demonstrations of different lengths."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Annotated, Any

from rlmods.data.arithmetic import Arithmetic, Level
from rlmods.data.schema import Splits
from rlmods.data.solutions import mistakes, solution_with_error, worked_solution
from rlmods.errors import UserError, suggest
from rlmods.settings.bounds import between, bounded
from rlmods.types import Prompt

STYLES = ("direct", "short", "checked")


@dataclass(frozen=True)
@bounded("data")
class Worked:
    """Questions of `data=arithmetic` whose demonstrations, the targets of `algo=sft` in
    `meta["response"]`, are written in different styles:

    ======= ========================================================
    style   response to `37+48=`
    ======= ========================================================
    direct  the answer
    short   `7+8=15`, `30+40=70`, `70+15=85`, each a line; the answer
    checked the lines of `short`, written 2 to `max_repeats` times; the answer
    ======= ========================================================

    A policy that is trained on them samples all styles. The style of a row depends on question and
    seed only. Rows of `val` have no demonstration. All rows have a pair of a correct and a wrong
    demonstration, `meta["candidates"]` and `ranks`, unless all or none are wrong.

    Raises:
        UserError: a style that does not exist.
    """

    level: Level = 3
    """Difficulty, 1 to 5, as in `data=arithmetic`."""
    operations: str = "+-"
    """Operators, a subset of `+-*`, as in `data=arithmetic`."""
    num_train: int = 10_000
    """Maximum number of train questions."""
    num_val: int = 200
    """Maximum number of val questions."""
    seed: int = 0
    """Seed of questions and styles; independent of the run's seed."""
    styles: Mapping[str, float] = field(
        default_factory=lambda: {"direct": 0.3, "short": 0.4, "checked": 0.3}
    )
    """Share of each style, in any unit."""
    wrong: Mapping[str, float] = field(
        default_factory=lambda: {"direct": 0.5, "short": 0.3, "checked": 0.3}
    )
    """Fraction of each style with a wrong answer: `direct` by a plausible mistake, the others by a
    wrong step that later steps continue from."""
    max_repeats: Annotated[int, between(2, 20)] = 3
    """Most times that `checked` writes the lines, 2 or more."""

    def __call__(self) -> Splits:
        for name in (*self.styles, *self.wrong):
            if name not in STYLES:
                raise UserError(f"data.styles.{name}: no such style; {suggest(name, STYLES)}")
        questions = Arithmetic(
            level=self.level,
            operations=self.operations,
            num_train=self.num_train,
            num_val=self.num_val,
            seed=self.seed,
        )()
        train = list(map(self._demonstrated, questions.train))
        val = [
            replace(prompt, meta={"level": self.level, **self._pair(prompt)})
            for prompt in questions.val
        ]
        return Splits(train, val)

    def _demonstrated(self, prompt: Prompt) -> Prompt:
        question = (prompt.text or "").removesuffix("=")
        random = Random(f"worked-{self.seed}-{question}")
        [style] = random.choices(list(self.styles), weights=list(self.styles.values()))
        is_wrong = random.random() < self.wrong.get(style, 0.0)
        response = self._response(question, int(prompt.answer or ""), style, is_wrong, random)
        meta = {"level": self.level, "style": style, "response": response, **self._pair(prompt)}
        return replace(prompt, meta=meta)

    def _pair(self, prompt: Prompt) -> dict[str, Any]:
        """Return a correct and a wrong response as annotations, each in a style drawn by its share
        among the responses like it; nothing if there are none like it."""
        question = (prompt.text or "").removesuffix("=")
        random = Random(f"worked-pair-{self.seed}-{question}")
        candidates = []
        for is_wrong in (False, True):
            weights = []
            for style, share in self.styles.items():
                fraction = self.wrong.get(style, 0.0)
                weights.append(share * (fraction if is_wrong else 1 - fraction))
            if not any(weights):
                return {}
            [style] = random.choices(list(self.styles), weights=weights)
            answer = int(prompt.answer or "")
            candidates.append(self._response(question, answer, style, is_wrong, random))
        return {"candidates": tuple(candidates), "ranks": (0, 1)}

    def _response(
        self, question: str, answer: int, style: str, is_wrong: bool, random: Random
    ) -> str:
        if style == "direct":
            stated = random.choice(mistakes(answer)) if is_wrong else answer
            return f"<answer>{stated}</answer>"
        solution = worked_solution(question)
        if is_wrong:
            solution, _ = solution_with_error(question, random)
        *lines, conclusion = solution
        repeats = random.randint(2, self.max_repeats) if style == "checked" else 1
        return "".join([*lines * repeats, conclusion])
