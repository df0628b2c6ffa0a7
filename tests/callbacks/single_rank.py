"""A single watched rank that hangs, or works: `python -m tests.callbacks.single_rank WHAT`."""

import re
import select
import sys
import time
from types import SimpleNamespace
from typing import Any

from rlmods.callbacks import Watchdog
from rlmods.grading.pool import Pool

if __name__ == "__main__":
    what = sys.argv[1]
    timer = SimpleNamespace(progress=1, phase="reward")
    learner: Any = SimpleNamespace(
        timer=timer, iteration=2, networks={}, notify=lambda *a: print(*a, flush=True)
    )
    trainer: Any = SimpleNamespace(
        world_size=1, global_rank=0, strategy=SimpleNamespace(barrier=lambda: None)
    )
    watchdog = Watchdog(timeout_s=2.0, lost_s=1.0)
    watchdog.on_train_start(trainer, learner)
    print("started", flush=True)
    if what == "sleep":
        time.sleep(40)
    elif what == "regex":
        re.match("(a|aa)+b", "a" * 100)  # holds the interpreter lock
    elif what == "workers":
        outcomes = Pool("time:sleep", workers=1).map(
            [(0.5,)] * 10, timeout_s=20, batch_timeout_s=60
        )
        assert all(outcome.status == "ok" for outcome in outcomes)
    elif what == "debugger":
        breakpoint()
    elif what == "work":
        while not select.select([0], [], [], 0.02)[0]:  # a line on stdin ends it
            timer.progress += 1
    watchdog.on_train_end(trainer, learner)
    print("finished")
