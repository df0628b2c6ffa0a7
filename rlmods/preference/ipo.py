"""Identity preference optimisation."""

from dataclasses import dataclass

from rlmods.preference.terms import log_ratio
from rlmods.ranking.pairs import is_better, pair_mean, pairwise_differences
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import CandidateFloats, CandidateInts, PromptFloats


@dataclass(frozen=True)
@bounded("preference")
class IPO:
    """IPO loss: (h_w - h_l - 1 / (2 beta))^2, with h = log pi(y | x) / pi_ref(y | x). The gap has a
    finite target, unlike DPO's.

    IPO, arXiv:2310.12036, equation 17 (beta is the paper's tau). Log-probabilities are sums over
    tokens, as in the equation; TRL uses means, as the paper's experiments did. Mean over all strict
    pairs of a ranking; ties contribute nothing."""

    beta: Positive = 0.1
    """Strength of the regularisation towards the reference."""

    def reward(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
    ) -> CandidateFloats:
        """Implicit reward beta h."""
        return self.beta * log_ratio(logprobs, ref_logprobs, num_tokens)

    def __call__(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
        rank: CandidateInts,
    ) -> PromptFloats:
        gap = pairwise_differences(log_ratio(logprobs, ref_logprobs, num_tokens), num_tokens > 0)
        return pair_mean((gap - 1 / (2 * self.beta)).square(), is_better(rank, num_tokens > 0))
