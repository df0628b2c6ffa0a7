"""Training without an off-policy correction."""

from dataclasses import dataclass

from rlmods.types import TokenFloats, TokenMask


@dataclass(frozen=True)
class NoCorrection:
    """No weights: responses count as samples of the trainer's policy. Right if
    `train/sampler_logprob_gap` is rounding."""

    def __call__(
        self, old_logprobs: TokenFloats, behavior_logprobs: TokenFloats, mask: TokenMask
    ) -> None:
        return None
