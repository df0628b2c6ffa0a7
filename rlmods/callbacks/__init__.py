"""Callbacks: log files, terminal output, checkpoints, stopping. In addition to Lightning's hooks,
the learner calls those in `hooks.py`."""

from rlmods.callbacks.checkpoint import IterationCheckpoint
from rlmods.callbacks.collapse import Collapse
from rlmods.callbacks.guard import Guard
from rlmods.callbacks.hacking import HackingMonitor
from rlmods.callbacks.idle import Idle
from rlmods.callbacks.jsonl import JsonlLogger
from rlmods.callbacks.progress import Progress
from rlmods.callbacks.samples import Samples
from rlmods.callbacks.stop import GracefulStop
from rlmods.callbacks.summary import Summary
from rlmods.callbacks.watchdog import Watchdog

__all__ = [
    "Collapse",
    "GracefulStop",
    "Guard",
    "HackingMonitor",
    "Idle",
    "IterationCheckpoint",
    "JsonlLogger",
    "Progress",
    "Samples",
    "Summary",
    "Watchdog",
]
