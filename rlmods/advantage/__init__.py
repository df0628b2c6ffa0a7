"""Rewards to credit per token."""

from rlmods.advantage.gae import GAE
from rlmods.advantage.group_mean import GroupMean
from rlmods.advantage.group_norm import GroupNorm
from rlmods.advantage.rloo import RLOO

__all__ = ["GAE", "RLOO", "GroupMean", "GroupNorm"]
