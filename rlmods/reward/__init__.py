"""Reward functions.

The classes are imported on first use, because the worker processes import modules of this package
and must start without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlmods.reward.accuracy import Accuracy
    from rlmods.reward.by_source import BySource
    from rlmods.reward.code import Code
    from rlmods.reward.copying import Copying
    from rlmods.reward.cosine import Cosine
    from rlmods.reward.diversity import Diversity
    from rlmods.reward.ensemble import Ensemble
    from rlmods.reward.environment import EnvironmentReward
    from rlmods.reward.format import Format
    from rlmods.reward.grader.rules import Rules
    from rlmods.reward.isolated import Isolated
    from rlmods.reward.json_schema import JSON
    from rlmods.reward.language import Language
    from rlmods.reward.length import Length
    from rlmods.reward.neural import Neural
    from rlmods.reward.overlong import Overlong
    from rlmods.reward.preference import Preference
    from rlmods.reward.process import Process
    from rlmods.reward.rating import Rating
    from rlmods.reward.regex import Regex
    from rlmods.reward.repetition import Repetition
    from rlmods.reward.task_score import TaskScore
    from rlmods.reward.tool_call import ToolCall
    from rlmods.reward.weighted_sum import WeightedSum

__all__ = [
    "JSON",
    "Accuracy",
    "BySource",
    "Code",
    "Copying",
    "Cosine",
    "Diversity",
    "Ensemble",
    "EnvironmentReward",
    "Format",
    "Isolated",
    "Language",
    "Length",
    "Neural",
    "Overlong",
    "Preference",
    "Process",
    "Rating",
    "Regex",
    "Repetition",
    "Rules",
    "TaskScore",
    "ToolCall",
    "WeightedSum",
]

_MODULES = {
    "Accuracy": "accuracy",
    "BySource": "by_source",
    "Code": "code",
    "Copying": "copying",
    "Cosine": "cosine",
    "Diversity": "diversity",
    "Ensemble": "ensemble",
    "EnvironmentReward": "environment",
    "Format": "format",
    "Isolated": "isolated",
    "JSON": "json_schema",
    "Language": "language",
    "Length": "length",
    "Neural": "neural",
    "Overlong": "overlong",
    "Preference": "preference",
    "Process": "process",
    "Rating": "rating",
    "Regex": "regex",
    "Repetition": "repetition",
    "Rules": "grader.rules",
    "TaskScore": "task_score",
    "ToolCall": "tool_call",
    "WeightedSum": "weighted_sum",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
