"""A watched rank that hangs or works: `python -m tests.callbacks.single_rank WHAT`."""

import re
import sys
import time
from typing import Any

from rlmods.callbacks import Watchdog

if __name__ == "__main__":
    what = sys.argv[1]
    rank: Any = None  # neither the trainer nor the learner is looked at
    watchdog = Watchdog(timeout_s=1.5)
    watchdog.on_train_start(rank, rank)
    if what == "sleep":
        time.sleep(40)
    elif what == "regex":
        re.match("(a|aa)+b", "a" * 100)  # holds the interpreter lock
    else:
        for _ in range(25):
            time.sleep(0.1)
            watchdog.on_safe_point(rank, rank)
        watchdog.on_train_end(rank, rank)
        time.sleep(2)
    print("finished")
