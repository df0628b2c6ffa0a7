"""Callbacks: terminal output, samples, checkpoints, monitoring, stopping. The learner calls the
hooks in `hooks.py` in addition to Lightning's."""

from rlmods.callbacks.checkpoint import IterationCheckpoint
from rlmods.callbacks.monitor import Monitor, NonfiniteRows
from rlmods.callbacks.progress import Progress
from rlmods.callbacks.samples import Samples
from rlmods.callbacks.stop import GracefulStop, TokenBudget, Watchdog
from rlmods.callbacks.summary import Summary

__all__ = [
    "GracefulStop",
    "IterationCheckpoint",
    "Monitor",
    "NonfiniteRows",
    "Progress",
    "Samples",
    "Summary",
    "TokenBudget",
    "Watchdog",
]
