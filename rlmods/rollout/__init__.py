"""Rollout engines: sampling of responses."""

from rlmods.rollout.local import Local
from rlmods.rollout.vllm import VLLM

__all__ = ["VLLM", "Local"]
