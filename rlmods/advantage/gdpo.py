"""The advantage of GDPO."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rlmods.advantage.group_norm import normalize_by_group
from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, masked_mean, sum_over_ranks
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class GDPO:
    """Normalisation by reward term: S_i = sum_k w_k (R_ik - mean(R_k)) / (std(R_k) + eps) over the
    terms k of the reward, mean and std over the responses to one prompt, then A_i = S_i / (std(S) +
    eps) with the standard deviation over the responses trained on, of all ranks.

    GDPO, arXiv:2601.05242, equations 4 to 6. Normalising the sum instead (advantage=group_norm)
    gives combinations of rewards with different totals equal advantages, and terms of a small
    spread no influence. w are the weights of the terms, `reward.terms.NAME.weight`. The paper
    subtracts the mean of S, which is 0: S sums to 0 within each prompt. A response on which a term
    abstains gets 0 from it. Exactly 0 for prompts on whose responses every term has equal scores.
    sampling=dynamic selects prompts by correctness: with sampling=fixed, those whose responses
    differ in another term only are trained on too."""

    eps: Positive = 1e-6
    """Added to the standard deviations."""
    unbiased: bool = True
    """Divide the squared deviations by the number of responses minus 1."""

    needs = AdvantageNeeds(group=True, terms=True, normalizes_batch=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None,
        terms: Float[Tensor, "N K"],
        weights: Float[Tensor, " K"],
    ) -> Credit:
        credit = self.estimate(rewards, mask, group, values, terms, weights)
        return Credit(self.normalize(credit.advantages, mask))

    def estimate(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None,
        terms: Float[Tensor, "N K"],
        weights: Float[Tensor, " K"],
    ) -> Credit:
        """Return S, before it is divided by the standard deviation of the batch."""
        scored = mask.any(1, keepdim=True)
        columns = []
        for scores in torch.split(terms, 1, dim=1):
            known = scored & ~scores.isnan()
            columns.append(normalize_by_group(scores, known, group, self.eps, self.unbiased))
        total = (torch.stack(columns, 1) * weights).sum(1)
        return Credit(broadcast_to_tokens(total, mask))

    def normalize(self, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
        """Return the advantages divided by the standard deviation of S over the rows with a true
        slot, of all ranks."""
        total = masked_mean(advantages, mask)
        num_scored = mask.any(1).sum().to(total.dtype)
        moments = sum_over_ranks(torch.stack([total.square().sum(), num_scored]))
        std = (moments[0] / (moments[1] - int(self.unbiased)).clamp(min=1)).sqrt()
        return torch.where(mask, advantages, 0.0) / (std + self.eps)
