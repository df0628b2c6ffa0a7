"""Two ranks, of which the last comes to grief while it grades: `python -m tests.faults.lost_ranks HOW FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rlmods.callbacks import Summary, Watchdog
from rlmods.callbacks.watchdog import GO_ON
from rlmods.cli.console import plain_errors, quiet
from rlmods.distributed.strategy import DDP
from rlmods.run import RunDir
from rlmods.types import Response, UserError
from tests.support.tiny_setup import even, fit, learner


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stands_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs() -> None:
    time.sleep(600)


def fails() -> None:
    raise UserError("the reward cannot go on: type reward=format")


class Grades:
    """Rewards until the second iteration."""

    def __init__(self, grief: Any, rank: int) -> None:
        self.grief, self.rank, self.calls = grief, rank, 0

    def __call__(self, responses: list[Response]) -> Any:
        self.calls += 1
        if self.calls == 2 and dist.get_rank() == self.rank:
            time.sleep(1.0)  # a few beats, so that where it is has been told
            self.grief()
        return even(responses)


if __name__ == "__main__":
    how, folder, rank = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    quiet()
    made = learner(reward=Grades(globals()[how], rank))
    watchdog = Watchdog(timeout_s=3.0, lost_s=2.0)
    summary = Summary(RunDir(folder), "test", {})
    with plain_errors():
        try:
            fit(made, 3, callbacks=(watchdog, summary), devices=2, strategy=DDP())
        except RuntimeError as error:
            if lost := getattr(made.trainer, "lost", None):
                raise UserError(f"{lost}; {GO_ON}") from error
            raise
