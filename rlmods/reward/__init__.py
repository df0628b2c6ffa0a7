"""Reward functions."""

from rlmods.grading.grader.rules import Rules
from rlmods.reward.accuracy import Accuracy
from rlmods.reward.by_source import BySource
from rlmods.reward.code import Code
from rlmods.reward.environment import EnvironmentReward
from rlmods.reward.format import Format, Language, Regex
from rlmods.reward.function import Function
from rlmods.reward.isolated import Isolated
from rlmods.reward.json_schema import JSON, ToolCall
from rlmods.reward.judged import Preference, Rating
from rlmods.reward.length import Cosine, Length, Overlong
from rlmods.reward.neural import Neural
from rlmods.reward.ngrams import Copying, Diversity, Repetition
from rlmods.reward.process import Calculations, Process
from rlmods.reward.task_score import TaskScore
from rlmods.reward.weighted_sum import Ensemble, Flipped, WeightedSum

__all__ = [
    "JSON",
    "Accuracy",
    "BySource",
    "Calculations",
    "Code",
    "Copying",
    "Cosine",
    "Diversity",
    "Ensemble",
    "EnvironmentReward",
    "Flipped",
    "Format",
    "Function",
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
