"""Data sets: each part is called once, before a model is loaded, and returns validated `Splits`."""

from rlmods.data.arithmetic import Arithmetic
from rlmods.data.gsm8k import GSM8K
from rlmods.data.hidden_number import HiddenNumber
from rlmods.data.jsonl import Jsonl
from rlmods.data.loader import PromptLoader, PromptModule
from rlmods.data.long_sums import LongSums
from rlmods.data.mixture import Mixture
from rlmods.data.preferences import Preferences
from rlmods.data.reasoning_gym import ReasoningGym
from rlmods.data.schema import Splits
from rlmods.data.stories import Stories
from rlmods.data.worked import Worked

__all__ = [
    "GSM8K",
    "Arithmetic",
    "HiddenNumber",
    "Jsonl",
    "LongSums",
    "Mixture",
    "Preferences",
    "PromptLoader",
    "PromptModule",
    "ReasoningGym",
    "Splits",
    "Stories",
    "Worked",
]
