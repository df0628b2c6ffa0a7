"""Odds ratio preference optimisation: SFT and preference in one loss, without a reference."""

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from rlmods.needs import PreferenceNeeds
from rlmods.preference.terms import per_token, sft_loss
from rlmods.ranking.pairs import is_better, pair_mean, pairwise_differences
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import CandidateFloats, CandidateInts, PromptFloats

MAX_MEAN_LOGPROB = -1e-6
"""Upper bound of the mean log-probability that odds are computed from: at 0 they are infinite."""


@dataclass(frozen=True)
@bounded("preference")
class ORPO:
    """ORPO loss: -log p_w + beta * -log sigmoid(log odds_w - log odds_l), with log p = log pi(y |
    x) / |y| and odds = p / (1 - p).

    ORPO, arXiv:2403.07691, equations 6 and 7 (beta is the paper's lambda). The first term is the
    SFT loss on the best response. Mean over all strict pairs of a ranking; ties contribute
    nothing."""

    beta: Positive = 0.1
    """Weight of the preference term."""

    needs = PreferenceNeeds(reference=False)

    def reward(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
    ) -> CandidateFloats:
        """Log-odds, scaled by beta."""
        return self.beta * log_odds(logprobs, num_tokens)

    def __call__(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
        rank: CandidateInts,
    ) -> PromptFloats:
        gap = pairwise_differences(log_odds(logprobs, num_tokens), num_tokens > 0)
        preference = pair_mean(-logsigmoid(gap), is_better(rank, num_tokens > 0))
        return sft_loss(logprobs, num_tokens, rank) + self.beta * preference


def log_odds(logprobs: CandidateFloats, num_tokens: CandidateInts) -> CandidateFloats:
    """Log-odds log(p / (1 - p)), with log p = log pi(y | x) / |y|."""
    mean = per_token(logprobs, num_tokens).clamp(max=MAX_MEAN_LOGPROB)
    return mean - torch.log(-torch.expm1(mean))
