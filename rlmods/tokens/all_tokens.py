"""Training on all tokens."""

from dataclasses import dataclass

from rlmods.types import TokenFloats, TokenMask


@dataclass(frozen=True)
class AllTokens:
    """Train on all sampled tokens."""

    def __call__(self, logprobs: TokenFloats, advantages: TokenFloats, mask: TokenMask) -> None:
        return None
