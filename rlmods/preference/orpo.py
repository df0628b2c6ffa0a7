"""Odds ratio preference optimisation: imitation and preference in one loss, no reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlmods.preference.terms import imitation, per_token
from rlmods.ranking.pairs import better, gaps, pair_mean

NEVER_CERTAIN = -1e-6
"""Mean log-probability above which odds are no longer told apart: they are infinite at 0."""


@dataclass(frozen=True)
class ORPO:
    """-log p_w + beta * -log sigmoid(log odds_w - log odds_l), with log p = log pi(y | x) / |y| and odds = p / (1 - p).

    ORPO, arXiv:2403.07691, equations 6 and 7 (beta is the paper's lambda); the first term is the imitation of the best response. Mean over
    all strict pairs of a ranking; ties contribute nothing."""

    beta: float = 0.1
    """Weight of the preference beside the imitation; above 0."""

    needs_reference: ClassVar[bool] = False
    needs_pairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"ORPO: beta must be above 0, got {self.beta}")

    def reward(
        self, logprobs: Float[Tensor, "P K"], ref_logprobs: Float[Tensor, "P K"] | None, num_tokens: Int[Tensor, "P K"]
    ) -> Float[Tensor, "P K"]:
        """beta times the log-odds."""
        return self.beta * log_odds(logprobs, num_tokens)

    def __call__(
        self,
        logprobs: Float[Tensor, "P K"],
        ref_logprobs: Float[Tensor, "P K"] | None,
        num_tokens: Int[Tensor, "P K"],
        rank: Int[Tensor, "P K"],
    ) -> Float[Tensor, " P"]:
        gap = gaps(log_odds(logprobs, num_tokens), num_tokens > 0)
        preference = pair_mean(-logsigmoid(gap), better(rank, num_tokens > 0))
        return imitation(logprobs, num_tokens, rank) + self.beta * preference


def log_odds(logprobs: Float[Tensor, "P K"], num_tokens: Int[Tensor, "P K"]) -> Float[Tensor, "P K"]:
    """log(p / (1 - p)), with log p = log pi(y | x) / |y|."""
    mean = per_token(logprobs, num_tokens).clamp(max=NEVER_CERTAIN)
    return mean - torch.log(-torch.expm1(mean))
