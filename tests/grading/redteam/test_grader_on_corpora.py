"""The grader on the corpora: at most 1 % of the hostile answers are paid, each explained, and at
most 3 % of the honest ones refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rlmods.grading.grader import verify
from tests.grading.redteam import honest, hostile
from tests.grading.redteam.grader import EXPLAINED
from tests.grading.redteam.rows import Graded, grade

MAX_PAID = 0.01
MAX_REFUSED = 0.03


@cache
def graded(title: str) -> Sequence[Graded]:
    return grade({"hostile": hostile, "honest": honest}[title].rows(), verify)


def test_hostile_answers_are_not_paid() -> None:
    answers = graded("hostile")
    paid = [(x.row.gold, x.row.text) for x in answers if x.paid]
    assert [pair for pair in paid if pair not in EXPLAINED] == []
    assert len(paid) <= MAX_PAID * len(answers)
    assert [x.row.text[:100] for x in answers if x.paid is None] == []


def test_honest_answers_are_not_refused() -> None:
    refused = [(x.row.gold, x.row.text) for x in graded("honest") if not x.paid]
    assert len(refused) <= MAX_REFUSED * len(graded("honest")), refused
