"""Algorithms: one LightningModule each."""

from rlmods.algo.base import Batch, Learner, PolicyGradient
from rlmods.algo.dapo import DAPO
from rlmods.algo.dr_grpo import DrGRPO
from rlmods.algo.grpo import GRPO
from rlmods.algo.gspo import GSPO
from rlmods.algo.sft import SFT

__all__ = ["DAPO", "GRPO", "GSPO", "SFT", "Batch", "DrGRPO", "Learner", "PolicyGradient"]
