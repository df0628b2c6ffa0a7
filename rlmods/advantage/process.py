"""The advantage of GRPO with process supervision."""

from dataclasses import dataclass

import torch

from rlmods.advantage.group_norm import normalize_by_group
from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, rewards_to_go
from rlmods.settings.bounds import Fraction, Positive, bounded
from rlmods.types import Credit, RowFloats, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class Process:
    """Process supervision: A_t = n_k + gamma n_{k+1} + gamma^2 n_{k+2} + ... for a token t of step
    k, with the normalised step rewards n = (r - mean) / (std + eps), mean and std over all steps of
    the responses to one prompt.

    DeepSeekMath (GRPO), arXiv:2402.03300, section 4.1.3, where gamma is 1. Only rewards on the last
    token of a step count; a KL in the reward is subtracted per token afterwards. Equal step
    rewards, responses without steps and tokens after the last step get exactly 0.

    If a reward also has terms with one score per response, such as accuracy, these are part of the
    last step's reward. With `outcome_weight` w they are normalised separately, as in outcome
    supervision (section 4.1.2), and every token gets A_t + w (R - mean(R)) / (std(R) + eps), mean
    and std over the responses to one prompt: steps and outcomes need no common scale, and many
    steps do not outweigh the outcome in the mean."""

    eps: Positive = 1e-6
    """Added to the standard deviation."""
    unbiased: bool = True
    """Divide the squared deviations by the number of steps minus 1 instead of the number of
    steps."""
    gamma: Fraction = 1.0
    """Discount per step, 0 to 1."""
    outcome_weight: Positive | None = None
    """w, the weight of the outcome advantage; above 0. null: outcome rewards are part of the last
    step's reward."""

    @property
    def needs(self) -> AdvantageNeeds:
        return AdvantageNeeds(
            group=True,
            steps=True,
            outcomes=self.outcome_weight is not None,
            normalizes_rewards=True,
            credit="token",
        )

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None,
        steps: TokenMask,
        outcomes: RowFloats | None = None,
    ) -> Credit:
        step_ends = mask & steps
        # Each step is normalised as if it were a response of one token.
        scores = rewards[step_ends][:, None]
        step_group = group[:, None].expand_as(mask)[step_ends]
        all_true = torch.ones_like(scores, dtype=torch.bool)
        normalised = torch.zeros_like(rewards)
        normalised[step_ends] = normalize_by_group(
            scores, all_true, step_group, self.eps, self.unbiased
        )
        discount = torch.where(step_ends, self.gamma, 1.0).to(rewards.dtype)
        advantages = rewards_to_go(normalised, mask, discount)
        if self.outcome_weight is not None and outcomes is not None:
            known = (mask.any(1) & ~outcomes.isnan())[:, None]
            outcome = normalize_by_group(outcomes[:, None], known, group, self.eps, self.unbiased)
            advantages = advantages + self.outcome_weight * broadcast_to_tokens(outcome, mask)
        return Credit(advantages)
