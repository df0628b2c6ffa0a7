"""DPO and conservative DPO."""

from dataclasses import dataclass
from typing import Annotated

from torch.nn.functional import logsigmoid

from rlmods.preference.terms import log_ratio
from rlmods.ranking.pairs import is_better, pair_mean, pairwise_differences
from rlmods.settings.bounds import Bound, Positive, bounded
from rlmods.types import CandidateFloats, CandidateInts, PromptFloats

BELOW_HALF = Bound("at least 0 and below 0.5", lambda x: 0 <= x < 0.5)


@dataclass(frozen=True)
@bounded("preference")
class Sigmoid:
    """DPO loss: -(1 - s) log sigmoid(r_w - r_l) - s log sigmoid(r_l - r_w), r = beta log pi(y | x)
    / pi_ref(y | x), s the label smoothing.

    DPO, arXiv:2305.18290, equation 7: a reward model's loss on the reward r that the policy is
    optimal for. s > 0 assumes that a fraction s of the labels is wrong (cDPO: Mitchell 2023, "A
    note on DPO with noisy preferences"). Mean over all strict pairs of a ranking; ties contribute
    nothing."""

    beta: Positive = 0.1
    """Strength of the regularisation towards the reference."""
    label_smoothing: Annotated[float, BELOW_HALF] = 0.0
    """Assumed fraction of wrong labels, 0 to below 0.5."""

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
    ) -> PromptFloats:
        gap = pairwise_differences(self.reward(logprobs, ref_logprobs, num_tokens), num_tokens > 0)
        s = self.label_smoothing
        loss = -(1 - s) * logsigmoid(gap) - s * logsigmoid(-gap)
        return pair_mean(loss, is_better(rank, num_tokens > 0))
