"""Two ranks, one of which fails in its reward: `python -m tests.faults.lost_ranks FAULT FOLDER
RANK`."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rlmods.callbacks import Summary, Watchdog
from rlmods.cli import console
from rlmods.cli.console import plain_errors, silence_libraries
from rlmods.cli.job import lost_rank
from rlmods.distributed.collectives import is_lost_connection
from rlmods.distributed.strategy import DDP
from rlmods.errors import UserError
from rlmods.run.directory import RunDir
from rlmods.types import Response
from tests.support.tiny_setup import even, fit, learner


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


def fail() -> None:
    raise UserError("the reward cannot go on: type reward=format")


class FaultyReward:
    """Reward with a fault on one rank in the second iteration."""

    def __init__(self, fault: Any, rank: int) -> None:
        self.fault, self.rank, self.calls = fault, rank, 0

    def __call__(self, responses: list[Response]) -> Any:
        self.calls += 1
        if self.calls == 2 and dist.get_rank() == self.rank:
            self.fault()
        return even(responses)


if __name__ == "__main__":
    fault, folder, rank = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    silence_libraries()
    console.OTHER_RANKS_WAIT_S = 0.0
    trained = learner(reward=FaultyReward(globals()[fault], rank))
    watchdog = Watchdog(timeout_s=3.0)
    summary = Summary(RunDir(folder), "test", {})
    with plain_errors():
        try:
            fit(trained, 3, callbacks=(watchdog, summary), devices=2, strategy=DDP())
        except RuntimeError as error:
            if not is_lost_connection(error):
                raise
            raise lost_rank(trained) from error
