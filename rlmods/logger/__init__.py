"""`metrics.jsonl`, and what Lightning's loggers lack: names and resumed runs of trackers, tables of
samples."""

from rlmods.logger.jsonl import JsonlLogger

__all__ = ["JsonlLogger"]
