"""Usage of a command. This module imports nothing that takes time."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_usage(arguments: Sequence[str], usage: str | None) -> None:
    """Print `usage` and exit, for `--help` or without arguments. A command calls this before it
    imports torch, which takes seconds."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        sys.exit(0 if arguments else 2)
