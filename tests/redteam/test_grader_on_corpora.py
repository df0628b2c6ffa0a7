"""The grader on the corpora: at most 1 % of the hostile answers are paid, each explained, and at most 3 % of the honest ones refused."""

from __future__ import annotations

from rlmods.reward.grader import verify
from tests.redteam import honest, hostile
from tests.redteam.grader import EXPLAINED
from tests.redteam.rows import grade

MAX_PAID = 0.01
MAX_REFUSED = 0.03


def test_hostile_answers_are_not_paid() -> None:
    graded = grade(hostile.rows(), verify)
    paid = [(x.row.gold, x.row.text) for x in graded if x.paid]
    assert [pair for pair in paid if pair not in EXPLAINED] == []
    assert len(paid) <= MAX_PAID * len(graded)
    assert [x.row.text[:100] for x in graded if x.paid is None] == []


def test_honest_answers_are_not_refused() -> None:
    graded = grade(honest.rows(), verify)
    refused = [(x.row.gold, x.row.text) for x in graded if not x.paid]
    assert len(refused) <= MAX_REFUSED * len(graded), refused
