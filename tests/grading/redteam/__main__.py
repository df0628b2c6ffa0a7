"""Print the tables of `docs/security.md`: `python -m tests.grading.redteam`, or `python -m tests.grading.redteam [SECTION
...]`.

Each section tries one kind of hostile input, and shows by family what was tried and what got
through. To register a section, add the path of a function to `SECTIONS`: it takes no arguments and
returns the rows of its table, each a dictionary by column.

    --rows FILE     write the mathematical answers to FILE instead, for `python bench/grader.py FILE
    PYTHON_WITH_MATH_VERIFY`
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from tests.grading.redteam import grader

SECTIONS = {
    "grader": "tests.grading.redteam.grader:table",
    "sandbox": "tests.grading.escapes:rows",
}
"""By name: the function that returns the rows of the section's table."""


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
        grader.write(Path(arguments[1]))
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
