"""All commands: `rlmods COMMAND ...`, which is `python -m rlmods.COMMAND ...`. `rlmods --help`
lists them."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

from rlmods.errors import suggest

FOLDER = Path(__file__).parents[1]
"""Folder of the package."""
FIRST = ("train", "evaluate", "report", "compare", "watch")
"""Commands that are listed first."""


def commands() -> dict[str, Path]:
    """Return the files of the commands by name."""
    files = sorted(FOLDER.glob("cli/[a-z]*.py")) + sorted(FOLDER.glob("lab/[a-z]*.py"))
    found = {file.stem: file for file in files if '__name__ == "__main__"' in file.read_text()}
    for file in FOLDER.glob("lab/*/__main__.py"):
        found[file.parent.name] = file
    return {
        name: found[name] for name in (*FIRST, *sorted(found.keys() - set(FIRST))) if name in found
    }


def summary(file: Path) -> str:
    """Return what a command does: its docstring up to the first colon, without importing it."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.split(":")[0].split("\n")[0]


def usage() -> str:
    """Return the list of commands."""
    rows = [f"  {name:<10} {summary(file)}" for name, file in commands().items()]
    return "\n".join(["usage: rlmods COMMAND ..., and rlmods COMMAND --help", "", *rows])


def main() -> None:
    """Run the command that the first argument names.

    Raises:
        SystemExit: after the usage, or if there is no such command.
    """
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        sys.exit(0 if sys.argv[1:] else 2)
    known = commands()
    if name not in known:
        sys.exit(f"error: rlmods {name}: there is no such command; {suggest(name, known)}")
    sys.argv = [f"rlmods {name}", *rest]
    # `__main__` is then the module of the command, by whose name further ranks are started
    runpy.run_module(f"rlmods.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
