"""Errors that the command line prints without a traceback, and texts that name what to type."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from typing import NoReturn


class UserError(Exception):
    """An error caused by user input. The command line prints its message (what is wrong, what to
    type instead) without a traceback."""


class Parser(argparse.ArgumentParser):
    """Parser of the arguments of `python -m rlmods.COMMAND`. Wrong ones are answered by one line
    with what to type."""

    def __init__(self, command: str, usage: str | None) -> None:
        super().__init__(
            prog=f"python -m rlmods.{command}",
            description=usage,
            formatter_class=argparse.RawTextHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        usage = re.sub(r"\[-.*?\]", "", self.format_usage().removeprefix("usage: "))
        advice = f"{message}; type {' '.join(usage.split())}"
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        if unknown is not None:
            advice = f"{unknown[1]}: {suggest(unknown[1], self._option_string_actions)}"
        self.exit(2, f"error: {advice}\n")


def print_usage(module: str, usage: str | None) -> None:
    """Print `usage` and exit, if `module` is run with `--help` or without arguments. A command
    calls this before it imports torch, which takes seconds."""
    arguments = sys.argv[1:]
    if module == "__main__" and (not arguments or arguments[0] in ("-h", "--help")):
        print(usage)
        sys.exit(0 if arguments else 2)


@contextmanager
def one_line_errors(interrupted: str = "interrupted") -> Iterator[None]:
    """Exit with a one-line message on a user's mistake or Ctrl-C, and with none where the program
    that reads stdout, such as `head`, has ended."""
    try:
        yield
        sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(interrupted)
    except BrokenPipeError:
        # Python writes the rest on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def in_one_line(said: object, max_chars: int | None = None) -> str:
    """Return a text without line breaks, or the message of an error: its type if it has none."""
    text = " ".join(str(said).split())[:max_chars]
    return text or (type(said).__name__ if isinstance(said, BaseException) else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 seed", "2 seeds"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def suggest(name: str, known: Iterable[object]) -> str:
    """Return a suggestion for an unknown name: the known names most similar to it, or all of them
    if none is similar."""
    names = list(map(str, known))
    similar = get_close_matches(name, names, 3) or get_close_matches(name.lower(), names, 3)
    ratio = {x: SequenceMatcher(None, name.lower(), x.lower()).ratio() for x in similar}
    similar = [x for x in similar if ratio[x] > ratio[similar[0]] - 0.15]
    return f"did you mean {' or '.join(similar)}?" if similar else f"choose from {', '.join(names)}"
