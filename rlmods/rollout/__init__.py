"""Rollout engines: sampling of responses."""

from rlmods.rollout.local import Local
from rlmods.rollout.turns import MultiTurn
from rlmods.rollout.vllm import VLLM
from rlmods.rollout.vllm_server import VLLMServer

__all__ = ["VLLM", "Local", "MultiTurn", "VLLMServer"]
