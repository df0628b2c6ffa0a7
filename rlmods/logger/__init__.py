"""`metrics.jsonl`, and what Lightning's loggers lack: names and resumed runs of trackers, tables of
samples, Trackio."""

from rlmods.logger.jsonl import JsonlLogger
from rlmods.logger.trackio import Trackio

__all__ = ["JsonlLogger", "Trackio"]
