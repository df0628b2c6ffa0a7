"""Weighted log-likelihood: no importance ratio at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.types import Surrogate


@dataclass(frozen=True)
class LogLikelihood:
    """A log(pi / pi_old): the gradient is A grad log pi, however far pi has moved; supervised fine-tuning where A is 1.

    RFT, arXiv:2308.01825. pi_old is a constant that makes the value 0 on policy. Nothing is ever clipped."""

    level: ClassVar = "none"

    def __call__(self, log_ratio: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Surrogate:
        return Surrogate(torch.where(mask, log_ratio, 0.0) * torch.where(mask, advantages, 0.0), torch.zeros_like(mask))
