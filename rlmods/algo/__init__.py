"""Algorithms, one LightningModule each."""

from rlmods.algo.arpo import ARPO
from rlmods.algo.cispo import CISPO
from rlmods.algo.dapo import DAPO
from rlmods.algo.distill import Distill
from rlmods.algo.dpo import DPO
from rlmods.algo.dr_grpo import DrGRPO
from rlmods.algo.gkd import GKD
from rlmods.algo.gmpo import GMPO
from rlmods.algo.grpo import GRPO
from rlmods.algo.gspo import GSPO
from rlmods.algo.iterative_grpo import IterativeGRPO
from rlmods.algo.learner import Learner
from rlmods.algo.online_dpo import OnlineDPO
from rlmods.algo.opo import OPO
from rlmods.algo.policy_gradient import PolicyGradient
from rlmods.algo.ppo import PPO, PPOKL
from rlmods.algo.process_reward_model import ProcessRewardModel
from rlmods.algo.reinforce import REINFORCE
from rlmods.algo.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from rlmods.algo.remax import ReMax
from rlmods.algo.reward_model import RewardModel
from rlmods.algo.rft import RFT
from rlmods.algo.rloo import RLOO
from rlmods.algo.sapo import SAPO
from rlmods.algo.sdpo import SDPO
from rlmods.algo.sft import SFT
from rlmods.training.settings import Batch, PolicyGradientSettings

__all__ = [
    "ARPO",
    "CISPO",
    "DAPO",
    "DPO",
    "GKD",
    "GMPO",
    "GRPO",
    "GSPO",
    "OPO",
    "PPO",
    "PPOKL",
    "REINFORCE",
    "RFT",
    "RLOO",
    "SAPO",
    "SDPO",
    "SFT",
    "Batch",
    "Distill",
    "DrGRPO",
    "IterativeGRPO",
    "Learner",
    "OnlineDPO",
    "PolicyGradient",
    "PolicyGradientSettings",
    "ProcessRewardModel",
    "ReMax",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "RewardModel",
]
