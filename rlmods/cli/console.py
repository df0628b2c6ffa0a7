"""Error messages and library warnings on the console."""

from __future__ import annotations

import logging
import os
import select
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import transformers

from rlmods.config.overrides import explain_override
from rlmods.config.plugins import explain_plugin_error
from rlmods.errors import UserError
from rlmods.run.printable import printable
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
def plain_errors() -> Iterator[None]:
    """Exit with status 1 and a one-line message on a user's mistake, including those that Hydra
    reports while it composes. Values from files in it are shown with their control characters as
    escapes. Ranks other than the first wait a little: of a mistake that all ranks find, torchrun
    has ended them by then, and the message is printed once. Nothing is printed where the program
    that reads stdout, such as `head`, has ended."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        # Python writes the rest on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if (user_error := as_user_error(error)) is None:
            raise
        if int(os.environ.get("RANK") or 0) > 0:
            time.sleep(OTHER_RANKS_WAIT_S)
        sys.exit(f"error: {printable(clean(str(user_error)))}")


def _reader_has_ended() -> bool:
    """Return whether what reads stdout has ended. Other pipes, such as those of tools and rewards,
    can break too."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in stdout.poll(0))


def as_user_error(error: Exception) -> UserError | None:
    """Return the error as a user's mistake, None if it is not one."""
    return (
        error
        if isinstance(error, UserError)
        else explain_plugin_error(error) or explain_override(error)
    )


def silence_libraries() -> None:
    """Silence library warnings that a user cannot act on, and print other warnings on one line,
    without their source location."""
    warnings.formatwarning = lambda message, *_, **__: (
        f"warning: {printable(clean(str(message)))}\n"
    )
    for pattern in IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", pattern)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # lists of unused devices, advertisements
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    # a line for every rank that joins
    logging.getLogger("lightning.fabric.utilities.distributed").setLevel(logging.WARNING)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every request
    transformers.utils.logging.disable_progress_bar()
