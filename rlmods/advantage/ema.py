"""The advantage of REINFORCE with a running baseline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from rlmods.ops import broadcast_to_tokens, masked_sum, sum_over_ranks
from rlmods.settings.bounds import ProperFraction, bounded
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass
@bounded("advantage")
class EMA:
    """Running-mean baseline: A_i = R_i - b on every token of the response; then b <- decay b + (1 -
    decay) mean(R) over the scored rows of all ranks.

    REINFORCE with a baseline, Williams 1992 (doi:10.1007/BF00992696). b is updated after use, so it
    does not contain R_i and the gradient stays unbiased; only the first call uses the mean of its
    own rows. b is saved in checkpoints."""

    decay: ProperFraction = 0.9
    """Decay of b per call, 0 to below 1: b averages about 1 / (1 - decay) calls."""
    depends_on_grading: ClassVar[str] = "rewards"
    _mean: float | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
    ) -> Credit:
        score = masked_sum(rewards, mask)
        num_scored = mask.any(1).sum().to(score.dtype)
        total, count = sum_over_ranks(torch.stack([score.sum(), num_scored])).tolist()
        if count == 0:
            return Credit(torch.zeros_like(rewards))
        mean = total / count
        baseline = mean if self._mean is None else self._mean
        self._mean = self.decay * baseline + (1 - self.decay) * mean
        return Credit(broadcast_to_tokens(score - baseline, mask))

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """Do nothing: `__call__` updates the baseline."""

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._mean = state["mean"]
