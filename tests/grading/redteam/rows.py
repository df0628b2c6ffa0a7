"""Rows of the corpora of mathematical answers, and the time limit under which they are graded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from rlmods.grading.redteam.scoring import LateError, time_limit

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
MAX_TRIES = 40
"""Draws for each row that is wanted."""
Draws = Iterator[tuple[str, str, str]]
"""Gold, answer, and a reason or ""."""
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


@dataclass(frozen=True)
class Graded:
    """Outcome of a row: paid or refused, or None if the verdict was late."""

    row: Row
    paid: bool | None
    seconds: float


def grade(
    rows: Sequence[Row], verify: Callable[[str, str], bool], limit_s: float = LIMIT_S
) -> list[Graded]:
    """Grade rows one after the other, each under the time limit."""
    graded = []
    for row in rows:
        start = time.perf_counter()
        paid: bool | None = None
        try:
            with time_limit(limit_s):
                paid = verify(row.text, row.gold)
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
        yield gold, answer, reason


def draw_rows(
    kind: str, families: Families, whole: Families, sizes: Mapping[str, int], seed: int
) -> list[Row]:
    """Return the rows of honest or hostile families, by name, without repetitions. Those in `whole`
    yield whole responses; the answers of the others are put into the formats of `WRAPPERS`."""
    result: list[Row] = []
    for name, family in {**families, **whole}.items():
        rng = Random(f"{kind}-{name}-{seed}")
        rows: dict[tuple[str, str], Row] = {}
        for gold, answer, reason in islice(family(rng), sizes[name] * MAX_TRIES):
            text = answer if name in whole else wrap(rng, answer)
            rows[gold, text] = Row(name, gold, text, kind == "honest", reason)
        result += list(rows.values())[: sizes[name]]
    return result
