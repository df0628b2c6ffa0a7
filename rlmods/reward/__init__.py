"""What a response is worth.

The names below are imported on first use: the grading workers import modules of this package and must start without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlmods.reward.accuracy import Accuracy
    from rlmods.reward.code import Code
    from rlmods.reward.format import Format
    from rlmods.reward.length import Length
    from rlmods.reward.neural import Neural
    from rlmods.reward.overlong import Overlong
    from rlmods.reward.process import Process
    from rlmods.reward.task_score import TaskScore
    from rlmods.reward.weighted_sum import WeightedSum

__all__ = ["Accuracy", "Code", "Format", "Length", "Neural", "Overlong", "Process", "TaskScore", "WeightedSum"]

_MODULES = {
    "Accuracy": "accuracy",
    "Code": "code",
    "Format": "format",
    "Length": "length",
    "Neural": "neural",
    "Overlong": "overlong",
    "Process": "process",
    "TaskScore": "task_score",
    "WeightedSum": "weighted_sum",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
