"""The corpora of mathematical answers under this project's grader: one row per family for the table
of `python -m tests.grading.redteam`."""

from __future__ import annotations

import json
from pathlib import Path

from rlmods.grading.grader import verify
from tests.grading.redteam import honest, hostile
from tests.grading.redteam.rows import Row, grade

EXPLAINED: dict[tuple[str, str], str] = {}
"""Reason why a hostile row, (gold, text), is paid all the same."""


def all_rows() -> list[Row]:
    return [*hostile.rows(), *honest.rows()]


def table() -> list[dict[str, object]]:
    """Return one row for each family of hostile and each style of honest answers, with totals."""
    result: list[dict[str, object]] = []
    for title, rows in (("hostile", hostile.rows()), ("honest", honest.rows())):
        graded = grade(rows, verify)
        names = dict.fromkeys(row.family for row in rows)
        families = {"all": graded} | {
            name: [x for x in graded if x.row.family == name] for name in names
        }
        for name, members in families.items():
            paid, late = sum(x.paid is True for x in members), sum(x.paid is None for x in members)
            result.append(
                {
                    "answers": f"{title}: {name}",
                    "tried": len(members),
                    "paid": paid,
                    "refused": len(members) - paid - late,
                    "late": late,
                    "slowest, ms": f"{1000 * max(x.seconds for x in members):.1f}",
                }
            )
    return result


def write(path: Path) -> None:
    """Write the rows in the form that `bench/grader.py` reads, to compare the grader with
    math-verify."""
    rows = (
        {
            "gold": r.gold,
            "pred_text": r.text,
            "expected": r.honest,
            "category": r.family if r.honest else "hostile",
        }
        for r in all_rows()
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
