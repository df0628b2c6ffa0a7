"""The advantage of ReMax."""

from dataclasses import dataclass

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.ops import rewards_to_go
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class Greedy:
    """Greedy baseline: A_t = G_t - b,  G_t = r_t + r_{t+1} + ...,  b the reward of the greedy
    response to the same prompt.

    ReMax, arXiv:2310.10505. b does not depend on the sampled responses, so the gradient is unbiased
    with one response per prompt. With an outcome reward only, G_t is R on every token; KL penalties
    on tokens before t are left out of G_t, as token t cannot affect them."""

    needs = AdvantageNeeds(greedy=True, credit="reward_to_go")

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        assert values is not None, "Greedy needs values: rewards of greedy responses"
        return Credit(rewards_to_go(rewards, mask) - torch.where(mask, values, 0.0))
