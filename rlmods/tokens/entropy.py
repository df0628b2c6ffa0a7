"""Training on the tokens where the policy is least certain."""

from dataclasses import dataclass

from rlmods.needs import TokenNeeds
from rlmods.ops import EQUAL, largest, sum_over_ranks
from rlmods.settings.bounds import PositiveFraction, bounded
from rlmods.types import TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("tokens")
class HighEntropy:
    """High-entropy tokens: train on token t if H_t >= tau. H_t is the entropy of the current policy
    at t, and tau the entropy above which the fraction `fraction` of all tokens of the optimizer
    step lies.

    "Beyond the 80/20 Rule", arXiv:2506.01939, section 5. As there, the other tokens stay in the
    denominators of the loss: with aggregation=token_mean the sum is divided by all tokens. TRL
    (`top_entropy_quantile`) divides by all tokens too, but takes tau from a microbatch. Here it is
    the threshold of the optimizer step over all ranks. All tokens that equal tau up to rounding are
    trained."""

    fraction: PositiveFraction = 0.2
    """Fraction of the tokens that are trained, rounded up; above 0, to 1."""

    needs = TokenNeeds(step=True, entropy=True)

    def __call__(
        self,
        logprobs: TokenFloats,
        advantages: TokenFloats,
        mask: TokenMask,
        entropy: TokenFloats,
    ) -> TokenMask:
        num_tokens = sum_over_ranks(mask.sum())
        # without the rounding error of 0.2 * 5, which is above 1
        count = (num_tokens.double() * self.fraction - 1e-9).ceil().long()
        return largest(entropy, mask, count, EQUAL)
