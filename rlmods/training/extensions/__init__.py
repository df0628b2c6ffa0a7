"""Optional extensions of the RL loop, created only in runs whose settings need them."""

from rlmods.training.extensions.base import Extension
from rlmods.training.extensions.early_stopping import EarlyStopping
from rlmods.training.extensions.entropy_control import EntropyControl
from rlmods.training.extensions.expert_routing import ExpertRouting
from rlmods.training.extensions.moving_reference import MovingReference
from rlmods.training.extensions.prompt_retirement import PromptRetirement
from rlmods.training.extensions.ptx import PTX
from rlmods.training.extensions.replay import Replay
from rlmods.training.extensions.reward_model_refresh import RewardModelRefresh
from rlmods.training.extensions.sample_ahead import SampleAhead
from rlmods.training.extensions.update_kl import UpdateKL

__all__ = [
    "PTX",
    "EarlyStopping",
    "EntropyControl",
    "ExpertRouting",
    "Extension",
    "MovingReference",
    "PromptRetirement",
    "Replay",
    "RewardModelRefresh",
    "SampleAhead",
    "UpdateKL",
]
