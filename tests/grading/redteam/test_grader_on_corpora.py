"""The grader on the corpora: at most 1 % of the hostile answers are paid, each explained, and at
most 3 % of the honest ones refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from rlmods.grading.grader import verify
from tests.grading.redteam import honest, hostile
from tests.grading.redteam.grader import EXPLAINED
from tests.grading.redteam.rows import Graded, grade

MAX_PAID = 0.01
MAX_REFUSED = 0.03
DOCS = Path(__file__).parents[3] / "docs" / "security.md"


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


@pytest.mark.parametrize("title", ["hostile", "honest"])
def test_totals_of_the_docs_are_those_of_the_corpora(title: str) -> None:
    """If this fails, the table in docs/security.md is from another grader or corpus: replace it by
    the output of `python -m tests.grading.redteam`."""
    (line,) = [
        line for line in DOCS.read_text().splitlines() if line.startswith(f"| {title}: all |")
    ]
    tried, paid = (int(cell) for cell in line.split("|")[2:4])
    assert (tried, paid) == (len(graded(title)), sum(x.paid is True for x in graded(title)))
