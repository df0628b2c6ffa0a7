"""The advantages of ARPO."""

from dataclasses import dataclass
from typing import Literal

from rlmods.advantage.group_norm import normalize_by_group
from rlmods.advantage.tree import mean_over_branches
from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Credit, RowInts, TokenFloats, TokenInts, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class BranchNorm:
    """Group normalisation over a tree of responses: A_i = (R_i - mean(R)) / (std(R) + eps) over all
    responses to one prompt. A token t that d of them share has

        soft:  A_i,t = A_i                               hard:  A_i,t = sum_j A_j / d  over the d
        responses j that share t

    ARPO, arXiv:2507.19849, section 3.2. A token that no other response shares has A_i in both.
    Without branches (`rollout`), both equal advantage=group_norm; soft always does.

    A shared token is a token of each of the d rows, in the loss and in its denominators (`Totals`):
    its gradient is the sum over the rows. The network computes equal ratios r_t in all of them.
    Where the objective is r_t A_t, as within the clipping range, and all rows have the same weight,
    as with aggregation=token_mean or fixed_length, both sums are r_t sum_j A_j and the gradients
    are equal. They differ where clipping depends on the sign of A, and with
    aggregation=sequence_mean, which weights rows by 1 / |y|."""

    eps: Positive = 1e-6
    """Added to the standard deviation."""
    unbiased: bool = True
    """Divide the squared deviations by G - 1 instead of G."""
    attribution: Literal["soft", "hard"] = "hard"
    """Advantage of shared tokens. soft: the row's own; hard: the mean over the rows that share the
    token."""

    @property
    def needs(self) -> AdvantageNeeds:
        credit: Literal["token", "response"] = "token" if self.attribution == "hard" else "response"
        return AdvantageNeeds(group=True, branches=True, normalizes_rewards=True, credit=credit)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
        origin: TokenInts | None = None,
    ) -> Credit:
        advantages = normalize_by_group(rewards, mask, group, self.eps, self.unbiased)
        if self.attribution == "soft":
            return Credit(broadcast_to_tokens(advantages, mask))
        return Credit(mean_over_branches(advantages, mask, group, origin)[0])
