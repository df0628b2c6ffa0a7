"""Print the tables of `docs/security.md`: `python -m tests.grading.redteam`, or `python -m tests.grading.redteam [SECTION
...]`.

Each section tries one kind of hostile input, and shows by family what was tried and what got
through. To register a section, add the path of a function to `SECTIONS`: it takes no arguments and
returns the rows of its table, each a dictionary by column.

    --rows FILE     write the mathematical answers to FILE instead, for `python bench/grader.py FILE
    PYTHON_WITH_MATH_VERIFY`
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from rlmods.grading.grader import verify
from tests.grading.redteam import honest, hostile
from tests.grading.redteam.rows import Row, grade

SECTIONS = {
    "grader": "tests.grading.redteam.__main__:table",
    "sandbox": "tests.grading.escapes:rows",
}
"""By name: the function that returns the rows of the section's table."""


EXPLAINED: dict[tuple[str, str], str] = {
    ("35", r"The answer is \(35\) per cent of \(18\)."): "words between formulas explain an answer",
    ("(9,12]", r"\boxed{(9,12]\setminus\{19\}}"): "as a set, it is the gold",
    ("61", r"\boxed{27} = \boxed{61}"): "the last box counts, as after a computation",
    (r"2\sin x\cos x", r"<answer>-\sin(-2x)</answer>"): "no rewriting is known to be simpler",
    (r"2\sin x\cos x", r"The answer is $\cos(\frac{\pi}{2}-2x)$."): (
        "no rewriting is known to be simpler"
    ),
}
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
            "question": r.question,
        }
        for r in all_rows()
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(section: str) -> Sequence[Mapping[str, object]]:
    """Return the rows of a section's table."""
    module, _, function = SECTIONS[section].partition(":")
    rows: Sequence[Mapping[str, object]] = getattr(import_module(module), function)()
    return rows


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table with the keys of the first row as columns."""
    columns = list(rows[0])
    lines: list[Iterable[object]] = [
        columns,
        ["---"] * len(columns),
        *([row.get(column, "") for column in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--rows"] and len(arguments) == 2:
        write(Path(arguments[1]))
        return
    if unknown := set(arguments) - set(SECTIONS):
        sys.exit(
            f"no section {', '.join(sorted(unknown))}; there are: "
            f"{', '.join(SECTIONS)}\n\n{__doc__}"
        )
    for section in arguments or SECTIONS:
        print(f"### {section}\n\n{markdown(rows_of(section))}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
