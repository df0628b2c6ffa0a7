"""Reward functions."""

from rlmods.grading.grader.rules import Rules
from rlmods.reward.accuracy import Accuracy
from rlmods.reward.by_source import BySource
from rlmods.reward.calculations import Calculations
from rlmods.reward.code import Code
from rlmods.reward.cosine import Cosine
from rlmods.reward.ensemble import Ensemble
from rlmods.reward.environment import EnvironmentReward
from rlmods.reward.flipped import Flipped
from rlmods.reward.format import Format
from rlmods.reward.function import Function
from rlmods.reward.isolated import Isolated
from rlmods.reward.json_schema import JSON
from rlmods.reward.language import Language
from rlmods.reward.length import Length
from rlmods.reward.neural import Neural
from rlmods.reward.ngrams import Copying, Diversity, Repetition
from rlmods.reward.overlong import Overlong
from rlmods.reward.preference import Preference
from rlmods.reward.process import Process
from rlmods.reward.rating import Rating
from rlmods.reward.regex import Regex
from rlmods.reward.task_score import TaskScore
from rlmods.reward.tool_call import ToolCall
from rlmods.reward.weighted_sum import WeightedSum

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
