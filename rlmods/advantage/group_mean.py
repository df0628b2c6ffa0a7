"""The advantage of Dr. GRPO."""

from dataclasses import dataclass

from rlmods.needs import AdvantageNeeds
from rlmods.ops import broadcast_to_tokens, center_by_group
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class GroupMean:
    """Group-mean baseline: A_i = R_i - mean(R) over the responses to one prompt, on every token of
    the response.

    Dr. GRPO, arXiv:2503.20783, section 3.2: dividing by the group's standard deviation would give
    very easy and very hard prompts more weight."""

    needs = AdvantageNeeds(group=True)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        centred, _ = center_by_group(rewards, mask, group)
        return Credit(broadcast_to_tokens(centred, mask))
