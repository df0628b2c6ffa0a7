"""Simple preference optimisation, without a reference."""

from dataclasses import dataclass

from torch.nn.functional import logsigmoid

from rlmods.needs import PreferenceNeeds
from rlmods.preference.terms import per_token
from rlmods.ranking.pairs import is_better, pair_mean, pairwise_differences
from rlmods.settings.bounds import NonNegative, Positive, bounded
from rlmods.types import CandidateFloats, CandidateInts, PromptFloats


@dataclass(frozen=True)
@bounded("preference")
class SimPO:
    """SimPO loss: -log sigmoid(r_w - r_l - gamma), with r = beta log pi(y | x) / |y|, the mean
    log-probability that also guides generation.

    SimPO, arXiv:2405.14734, equation 6. Mean over all strict pairs of a ranking; ties contribute
    nothing."""

    beta: Positive = 2.0
    """Scale of the reward."""
    gamma: NonNegative = 1.0
    """Target margin between the rewards of the better and the worse response."""

    needs = PreferenceNeeds(reference=False)

    def reward(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
    ) -> CandidateFloats:
        """Implicit reward r."""
        return self.beta * per_token(logprobs, num_tokens)

    def __call__(
        self,
        logprobs: CandidateFloats,
        ref_logprobs: CandidateFloats | None,
        num_tokens: CandidateInts,
        rank: CandidateInts,
    ) -> PromptFloats:
        gap = pairwise_differences(self.reward(logprobs, ref_logprobs, num_tokens), num_tokens > 0)
        return pair_mean(-logsigmoid(gap - self.gamma), is_better(rank, num_tokens > 0))
