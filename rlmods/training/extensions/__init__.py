"""Optional extensions of the RL loop, created only in runs whose settings need them."""

from collections.abc import Callable

from rlmods.needs import RolloutNeeds, needs_of
from rlmods.protocols import Controller
from rlmods.training.extensions.base import Extension, LoopView
from rlmods.training.extensions.expert_routing import ExpertRouting
from rlmods.training.extensions.greedy_baseline import GreedyBaseline
from rlmods.training.extensions.moving_reference import MovingModel
from rlmods.training.extensions.policy_kl import EarlyStopping, UpdateKL
from rlmods.training.extensions.prompt_retirement import PromptRetirement
from rlmods.training.extensions.replay import Replay
from rlmods.training.extensions.reward_model_refresh import RewardModelRefresh
from rlmods.training.extensions.sample_ahead import SampleAhead
from rlmods.training.extensions.supervised import (
    PTX,
    Likelihood,
    correct_tokens,
    observed_tokens,
)
from rlmods.training.settings import PolicyGradientSettings

__all__ = [
    "PTX",
    "EarlyStopping",
    "ExpertRouting",
    "Extension",
    "GreedyBaseline",
    "Likelihood",
    "MovingModel",
    "PromptRetirement",
    "Replay",
    "RewardModelRefresh",
    "SampleAhead",
    "UpdateKL",
    "create_extensions",
]


def create_extensions(loop: LoopView, settings: PolicyGradientSettings) -> list[Extension]:
    """Return the extensions that are wanted, in the order of their hooks. MovingModel is after
    Replay, because it scores the replayed rows too."""
    s, splits, teacher = settings, loop.splits, loop.teacher
    retires = s.retire_solved is not None or s.retire_unsolved is not None
    table: list[tuple[object, Callable[[], Extension]]] = [
        (needs_of(loop.rollout, RolloutNeeds).ahead, SampleAhead),
        (loop.credit.needs.greedy, GreedyBaseline),
        (s.replay_fraction, lambda: Replay(s.replay_fraction, s.replay_staleness)),
        (retires, lambda: PromptRetirement(s.retire_solved, s.retire_unsolved, s.bring_back)),
        (
            s.ptx_coefficient,
            lambda: PTX(s.ptx_coefficient, splits.ptx, s.ptx_rows, splits.ptx_weights),
        ),
        (
            s.positive_coefficient,
            lambda: Likelihood("positive", s.positive_coefficient, correct_tokens),
        ),
        (
            s.observation_coefficient,
            lambda: Likelihood("observation", s.observation_coefficient, observed_tokens),
        ),
        (loop.policy.is_mixture, lambda: ExpertRouting(loop.router)),
        (s.target_kl, lambda: EarlyStopping(s.target_kl or 0.0)),
        (isinstance(loop.ratio, Controller), UpdateKL),
    ]
    extensions = [create() for is_wanted, create in table if is_wanted]
    if s.reference_every is not None and loop.reference is not None:
        extensions.append(MovingModel(loop.reference, s.reference_every))
    if teacher is not None and teacher.model is not None and teacher.rate:
        extensions.append(MovingModel(teacher.model, rate=teacher.rate))
    return extensions
