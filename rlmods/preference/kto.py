"""Kahneman-Tversky optimisation: learning from labels of single responses."""

from dataclasses import dataclass

import torch

from rlmods.needs import PreferenceNeeds
from rlmods.ops import masked_mean
from rlmods.preference.terms import log_ratio
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import CandidateFloats, CandidateInts, PromptFloats, Scalar


@dataclass(frozen=True)
@bounded("preference")
class KTO:
    """KTO loss: w_D (1 - sigmoid(r - z)) for a desirable response (rank 0), w_U (1 - sigmoid(z -
    r)) for any other, with r = beta log pi(y | x) / pi_ref(y | x) and the reference point z = beta
    KL(pi || pi_ref).

    KTO, arXiv:2402.01306, equation 8. Mean over a prompt's responses: two of a pair, one of a
    labelled response. `kl` is the paper's estimate, max(0, mean of log pi(y' | x) / pi_ref(y' | x))
    over responses y' to other prompts of the optimizer step, without a gradient. The caller
    computes it once per optimizer step, before the step is split into microbatches."""

    beta: Positive = 0.1
    """Slope of the sigmoid: larger ones saturate at smaller log-ratios."""
    desirable_weight: Positive = 1.0
    """w_D, above 0. The paper keeps (w_D * number of desirable) / (w_U * number of undesirable)
    between 1 and 4/3."""
    undesirable_weight: Positive = 1.0
    """w_U, above 0."""

    needs = PreferenceNeeds(pairs=False, kl=True)

    def reward(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
    ) -> CandidateFloats:
        """Implicit reward r."""
        return self.beta * log_ratio(logprobs, ref_logprobs, num_tokens)

    def __call__(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
        rank: CandidateInts,
        kl: Scalar,
    ) -> PromptFloats:
        gain = self.reward(logprobs, ref_logprobs, num_tokens) - self.beta * kl.detach()
        # 1 - sigmoid(x) = sigmoid(-x)
        desirable = self.desirable_weight * torch.sigmoid(-gain)
        undesirable = self.undesirable_weight * torch.sigmoid(gain)
        return masked_mean(torch.where(rank == 0, desirable, undesirable), num_tokens > 0)
