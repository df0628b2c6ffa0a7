"""Optional extensions of the RL loop, created only in runs whose settings need them."""

from __future__ import annotations

from collections.abc import Callable

from rlmods.training.extensions.base import Extension
from rlmods.training.extensions.early_stopping import EarlyStopping
from rlmods.training.extensions.expert_routing import ExpertRouting
from rlmods.training.extensions.moving_reference import MovingReference
from rlmods.training.extensions.prompt_retirement import PromptRetirement
from rlmods.training.extensions.ptx import PTX
from rlmods.training.extensions.replay import Replay
from rlmods.training.extensions.reward_model_refresh import RewardModelRefresh
from rlmods.training.extensions.sample_ahead import SampleAhead
from rlmods.training.extensions.update_kl import UpdateKL
from rlmods.training.settings import PolicyGradientSettings
from rlmods.training.views import LoopView

__all__ = [
    "PTX",
    "EarlyStopping",
    "ExpertRouting",
    "Extension",
    "MovingReference",
    "PromptRetirement",
    "Replay",
    "RewardModelRefresh",
    "SampleAhead",
    "UpdateKL",
    "create_extensions",
]

ORDER: tuple[Callable[[LoopView, PolicyGradientSettings], Extension | None], ...] = (
    SampleAhead.create,
    Replay.create,
    PromptRetirement.create,
    PTX.create,
    ExpertRouting.create,
    EarlyStopping.create,
    UpdateKL.create,
    MovingReference.create,
)
"""Extensions in the order of their hooks. MovingReference is after Replay, because it scores the
replayed rows too. Each returns None if the settings do not ask for it."""


def create_extensions(loop: LoopView, settings: PolicyGradientSettings) -> list[Extension]:
    """Return the extensions that the settings ask for, in the order of their hooks."""
    created = [create(loop, settings) for create in ORDER]
    return [extension for extension in created if extension is not None]
