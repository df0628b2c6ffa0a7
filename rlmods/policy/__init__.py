"""Policies: the language models that are trained."""

from rlmods.policy.adapted import AdaptedPolicy
from rlmods.policy.base import Policy
from rlmods.policy.hf import HuggingFace
from rlmods.policy.random import Random
from rlmods.policy.scalar import ScalarModel
from rlmods.policy.smollm2 import SmolLM2
from rlmods.policy.tiny import Tiny

__all__ = ["AdaptedPolicy", "HuggingFace", "Policy", "Random", "ScalarModel", "SmolLM2", "Tiny"]
