"""Advantage estimators: rewards to advantages per token."""

from rlmods.advantage.accept import Accept
from rlmods.advantage.batch_mean import BatchMean
from rlmods.advantage.branch_norm import BranchNorm
from rlmods.advantage.ema import EMA
from rlmods.advantage.gae import GAE
from rlmods.advantage.gdpo import GDPO
from rlmods.advantage.greedy import Greedy
from rlmods.advantage.group_mean import GroupMean
from rlmods.advantage.group_norm import GroupNorm
from rlmods.advantage.length_weighted import LengthWeighted
from rlmods.advantage.max_rl import MaxRL
from rlmods.advantage.n_step import NStep
from rlmods.advantage.process import Process
from rlmods.advantage.reinforce_pp import ReinforcePP
from rlmods.advantage.rloo import RLOO
from rlmods.advantage.sum import Sum
from rlmods.advantage.teacher import TeacherLogRatio
from rlmods.advantage.tree import Tree
from rlmods.advantage.turn_norm import TurnNorm

__all__ = [
    "EMA",
    "GAE",
    "GDPO",
    "RLOO",
    "Accept",
    "BatchMean",
    "BranchNorm",
    "Greedy",
    "GroupMean",
    "GroupNorm",
    "LengthWeighted",
    "MaxRL",
    "NStep",
    "Process",
    "ReinforcePP",
    "Sum",
    "TeacherLogRatio",
    "Tree",
    "TurnNorm",
]
