"""Custom algorithm: `python train.py algo=name`."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.algo import PolicyGradient, PolicyGradientSettings
from rlmods.policy.base import PolicyOutput
from rlmods.settings.bounds import NonNegative
from rlmods.types import Experience


@dataclass(frozen=True)
class Settings(PolicyGradientSettings):
    """Settings of the algorithm, `algo.*` in the configuration."""

    imitation: NonNegative = 0.1
    """Weight of the log-likelihood of good responses."""


class Name(PolicyGradient):
    """DAPO with the log-likelihood of good responses in the objective, as in VAPO
    (arXiv:2504.05118).

    `1/sum|y| sum_i sum_t [clip(r, A) + c 1[A > 0] log pi(y_t)]`, with c = `algo.imitation`."""

    settings_type: ClassVar[type[Any]] = Settings
    settings: Settings

    def objective(self, micro: Experience, output: PolicyOutput, old_logprobs: Tensor) -> Tensor:
        """Return the objective [N, T] of each token, which is maximised. `aggregation` and the mask
        are applied afterwards."""
        clipped = super().objective(micro, output, old_logprobs)
        good = log_likelihood_of_good(output.logprobs, micro.advantages)
        self.meter.mean("train/imitation", good, micro.mask)
        return clipped + self.settings.imitation * good


def log_likelihood_of_good(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Return log pi [N, T] of the tokens with a positive advantage, 0 for the others."""
    return torch.where(advantages > 0, logprobs, 0.0)
