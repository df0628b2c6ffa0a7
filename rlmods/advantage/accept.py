"""The advantage of rejection sampling fine-tuning."""

from dataclasses import dataclass

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, masked_sum
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class Accept:
    """Rejection sampling: A_i = 1 if R_i >= threshold else 0, on every token of the response.
    Rejected responses get no gradient.

    RFT, arXiv:2308.01825; with ratio=log_likelihood the gradient equals supervised fine-tuning on
    the accepted responses. R_i is the score by which `sampling` selects, so that one score
    selects and accepts (`needs.correctness`)."""

    threshold: float = 0.5
    """Lowest score that is accepted: correctness if the reward reports it, else the total
    reward."""

    needs = AdvantageNeeds(correctness=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        accepted = masked_sum(rewards, mask) >= self.threshold
        return Credit(broadcast_to_tokens(accepted.to(rewards.dtype), mask))
