"""Kahneman-Tversky optimisation: a verdict on single responses is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlmods.ops import masked_mean
from rlmods.preference.terms import log_ratio


@dataclass(frozen=True)
class KTO:
    """w_D (1 - sigmoid(r - z)) for a desirable response (rank 0), w_U (1 - sigmoid(z - r)) for any other, with
    r = beta log pi(y | x) / pi_ref(y | x) and z = beta KL(pi || pi_ref) the point from which gains and losses are felt.

    KTO, arXiv:2402.01306, equation 8. Mean over a prompt's responses: a pair is two of them, a labelled response one. `kl` is the paper's
    estimate, max(0, mean of log pi(y' | x) / pi_ref(y' | x)) over responses y' to other prompts of the optimizer step, without a
    gradient: whoever calls this computes it once, before the step is cut into microbatches."""

    beta: float = 0.1
    """How soon gains and losses are felt no more; above 0."""
    desirable_weight: float = 1.0
    """w_D. The paper keeps (w_D * number of desirable) / (w_U * number of undesirable) between 1 and 4/3."""
    undesirable_weight: float = 1.0
    """w_U."""

    needs_reference: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = False
    needs_kl: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("beta", "desirable_weight", "undesirable_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"KTO: {name} must be above 0, got {getattr(self, name)}")

    def reward(
        self, logprobs: Float[Tensor, "P K"], ref_logprobs: Float[Tensor, "P K"] | None, num_tokens: Int[Tensor, "P K"]
    ) -> Float[Tensor, "P K"]:
        """The implicit reward r."""
        return self.beta * log_ratio(logprobs, ref_logprobs, num_tokens)

    def __call__(
        self,
        logprobs: Float[Tensor, "P K"],
        ref_logprobs: Float[Tensor, "P K"] | None,
        num_tokens: Int[Tensor, "P K"],
        rank: Int[Tensor, "P K"],
        kl: Float[Tensor, ""],
    ) -> Float[Tensor, " P"]:
        gain = self.reward(logprobs, ref_logprobs, num_tokens) - self.beta * kl.detach()
        # 1 - sigmoid(x) = sigmoid(-x)
        desirable, other = self.desirable_weight * torch.sigmoid(-gain), self.undesirable_weight * torch.sigmoid(gain)
        return masked_mean(torch.where(rank == 0, desirable, other), num_tokens > 0)
