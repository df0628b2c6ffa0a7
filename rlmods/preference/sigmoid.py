"""DPO and its conservative form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlmods.preference.terms import log_ratio
from rlmods.ranking.pairs import better, gaps, pair_mean


@dataclass(frozen=True)
class Sigmoid:
    """-(1 - s) log sigmoid(r_w - r_l) - s log sigmoid(r_l - r_w), with r = beta log pi(y | x) / pi_ref(y | x) and s the label smoothing.

    The reward that a policy is optimal for, trained like a reward model (DPO, arXiv:2305.18290, equation 7); s > 0 says that a share s of
    the labels is wrong (cDPO: Mitchell 2023, "A note on DPO with noisy preferences"). Mean over all strict pairs of a ranking; ties
    contribute nothing."""

    beta: float = 0.1
    """How dear it is to leave the reference; above 0."""
    label_smoothing: float = 0.0
    """Share of labels that are taken to be wrong, 0 to below 0.5."""

    needs_reference: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"Sigmoid: beta must be above 0, got {self.beta}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"Sigmoid: label_smoothing must be at least 0 and below 0.5, got {self.label_smoothing}")

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
    ) -> Float[Tensor, " P"]:
        gap = gaps(self.reward(logprobs, ref_logprobs, num_tokens), num_tokens > 0)
        loss = -(1 - self.label_smoothing) * logsigmoid(gap) - self.label_smoothing * logsigmoid(-gap)
        return pair_mean(loss, better(rank, num_tokens > 0))
