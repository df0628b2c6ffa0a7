"""Rows of the corpora of mathematical answers, and the time limit under which they are graded."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from random import Random
from typing import NamedTuple

from rlmods.grading.time_limit import LateError, time_limit

LIMIT_S = 2.0
"""A verdict that takes longer counts as late. Ordinary verdicts take far less than a
millisecond."""
WRAPPERS = (
    r"\boxed{ANSWER}",
    "<answer>ANSWER</answer>",
    "#### ANSWER",
    "The answer is $ANSWER$.",
    r"So we get \[\boxed{ANSWER}\]",
)
"""Responses that state an answer, in each of the formats that the grader reads."""
NOUNS = [
    "lanterns",
    "kettles",
    "tulips",
    "crates",
    "pebbles",
    "scarves",
    "magnets",
    "walnuts",
    "postcards",
    "ribbons",
    "cupcakes",
    "puppies",
    "shelves",
]
"""Things that questions count."""
MAX_TRIES = 40
"""Draws for each row that is wanted."""


class Draw(NamedTuple):
    gold: str
    answer: str
    reason: str = ""
    question: str = ""


Draws = Iterator[Draw]
Families = Mapping[str, Callable[[Random], Draws]]


@dataclass(frozen=True)
class Row:
    """A response with its gold answer."""

    family: str
    gold: str
    text: str
    """The whole response."""
    honest: bool
    """True if the response is right and must be paid, False if it must not be."""
    reason: str = ""
    """Why, if that is not obvious from the two texts."""
    question: str = ""
    """The question, where the verdict depends on it."""


@dataclass(frozen=True)
class Graded:
    """Outcome of a row: paid or refused, or None if the verdict was late."""

    row: Row
    paid: bool | None
    seconds: float


def grade(
    rows: Sequence[Row], verify: Callable[..., bool], limit_s: float = LIMIT_S
) -> list[Graded]:
    """Grade rows one after the other, each under the time limit."""
    graded = []
    for row in rows:
        start = time.perf_counter()
        paid: bool | None = None
        try:
            with time_limit(limit_s):
                paid = verify(row.text, row.gold, question=row.question)
        except LateError:
            pass
        graded.append(Graded(row, paid, time.perf_counter() - start))
    return graded


def wrap(rng: Random, answer: str) -> str:
    """Return a response that states `answer` in a format drawn from `WRAPPERS`, one that can hold
    its markup and line breaks."""
    formula, markdown, lines = "$" in answer.replace(r"\$", ""), "**" in answer, "\n" in answer
    refused = [
        mark
        for mark, found in (("$", formula or markdown), ("\\", markdown), ("#", lines))
        if found
    ]
    fitting = [wrapper for wrapper in WRAPPERS if not any(mark in wrapper for mark in refused)]
    return rng.choice(fitting).replace("ANSWER", answer)


def pick(rng: Random, gold: str, *answers: str, num: int = 1, reason: str = "") -> Draws:
    """Yield some of the answers to a gold."""
    for answer in rng.sample(answers, min(num, len(answers))):
        yield Draw(gold, answer, reason)


@dataclass(frozen=True)
class Asked:
    """Answers to a question, one a line. `@` and a letter is a drawn value, `¶` a line break."""

    questions: str
    gold: str
    answers: str
    values: Callable[[Random], Mapping[str, object]] = lambda rng: {}

    def draw(self, rng: Random, num: int) -> Draws:
        values = self.values(rng)
        question = rng.choice(self.questions.strip().split("\n"))
        answers = self.answers.strip().split("\n")
        for answer in rng.sample(answers, min(num, len(answers))):
            yield Draw(*(_filled(text, values) for text in (self.gold, answer, "", question)))


def asked(*tables: Asked, num: int = 3) -> Callable[[Random], Draws]:
    """Return a family that draws from tables, `num` answers to a question."""

    def family(rng: Random) -> Draws:
        for table in rng.sample(tables, len(tables)):
            yield from table.draw(rng, num)

    return family


def _filled(text: str, values: Mapping[str, object]) -> str:
    filled = re.sub(r"@([A-Za-z])", lambda match: str(values[match[1]]), text)
    return filled.replace("¶", "\n")


def draw_rows(
    kind: str, families: Families, whole: Families, sizes: Mapping[str, int], seed: int
) -> list[Row]:
    """Return the rows of honest or hostile families, by name, without repetitions. Those in `whole`
    yield whole responses; the answers of the others are put into the formats of `WRAPPERS`."""
    result: list[Row] = []
    for name, family in {**families, **whole}.items():
        rng = Random(f"{kind}-{name}-{seed}")
        rows: dict[tuple[str, str, str], Row] = {}
        draws = chain.from_iterable(map(family, repeat(rng)))
        for gold, answer, reason, question in islice(draws, sizes[name] * MAX_TRIES):
            text = answer if name in whole else wrap(rng, answer)
            row = Row(name, gold, text, kind == "honest", reason, question)
            rows[gold, text, question] = row
        result += list(rows.values())[: sizes[name]]
    return result
