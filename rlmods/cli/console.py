"""Error messages and library warnings on the console."""

import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rlmods.config.overrides import explain_override
from rlmods.config.plugins import explain_plugin_error
from rlmods.errors import UserError
from rlmods.run.secrets import clean

IGNORED_WARNINGS = (
    r".*does not have many workers.*",
    # intended: log-probabilities are computed without dropout
    r".*module\(s\) in eval mode at the start of training.*",
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
    r".*`training_step` returned `None`.*",
)
OTHER_RANKS_WAIT_S = 8.0
"""Time after which ranks other than the first print an error."""


@contextmanager
def plain_errors(hint: Callable[[], str] | None = None) -> Iterator[None]:
    """Exit with status 1, and a one-line message on a user's mistake, including those that Hydra
    reports while it composes, or the traceback of another error. Ranks other than the first wait a
    little before a message: of a mistake that all ranks find, torchrun has ended them by then, and
    it is printed once.

    Args:
        hint: returns a line to print below the message, or below the traceback of another error,
            "" for none.
    """
    try:
        yield
    except Exception as error:
        user_error = as_user_error(error)
        message = ""
        if user_error is None:
            print_traceback(error)
        else:
            message = f"error: {clean(str(user_error))}"
            if int(os.environ.get("RANK") or 0) > 0:
                time.sleep(OTHER_RANKS_WAIT_S)
        _exit(message, 1, hint)
    except SystemExit as error:  # of Lightning on a second Ctrl-C
        if hint is None or error.code in (None, 0):
            raise
        _exit(error.code if isinstance(error.code, str) else "", error.code, hint)


def print_traceback(error: Exception) -> None:
    """Print the traceback of an error without the passwords and keys of the settings."""
    text = "".join(traceback.format_exception(error))
    print(clean(text), end="", file=sys.stderr, flush=True)


def _exit(message: str, code: object, hint: Callable[[], str] | None) -> NoReturn:
    """Exit with a message and the hint below it, or with a status if both are empty."""
    advice = hint() if hint is not None else ""
    sys.exit("\n".join(filter(None, [message, advice])) or code)  # type: ignore[arg-type]


def as_user_error(error: Exception) -> UserError | None:
    """Return the error as a user's mistake, None if it is not one."""
    if isinstance(error, UserError):
        return error
    return explain_plugin_error(error) or explain_override(error)


def silence_libraries() -> None:
    """Silence library warnings that a user cannot act on, and print other warnings on one line,
    without their source location."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {clean(str(message))}\n"
    for pattern in IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", pattern)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for logger in (
        "lightning.pytorch.utilities.rank_zero",  # lists of unused devices, advertisements
        "lightning.fabric.utilities.distributed",  # a line for every rank that joins
        "httpx2",  # a line for every request
    ):
        logging.getLogger(logger).setLevel(logging.WARNING)
    from transformers.utils.logging import disable_progress_bar  # after Hydra has composed

    disable_progress_bar()
