"""No KL penalty and no reference model."""

from dataclasses import dataclass

import torch

from rlmods.needs import KLNeeds
from rlmods.types import TokenFloats


@dataclass(frozen=True)
class NoKL:
    """No penalty: 0 everywhere, and no reference model is loaded. DAPO, arXiv:2503.14476, section
    2.3, and Dr. GRPO."""

    coefficient = 0.0
    where = "loss"
    needs = KLNeeds(reference=False)

    def __call__(self, logprobs: TokenFloats, ref_logprobs: TokenFloats) -> TokenFloats:
        return torch.zeros_like(logprobs)
