"""Training with a limit on the tokens that lower the policy's entropy most."""

from dataclasses import dataclass

from torch import Tensor

from rlmods.needs import TokenNeeds
from rlmods.ops import EQUAL, center, largest, sum_over_ranks
from rlmods.settings.bounds import Limit, Positive, PositiveFraction, bounded, check_bounds
from rlmods.types import TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("tokens")
class ClipCov:
    """Clip-Cov: leave out a random `fraction` of all tokens among those with low <= C_t <= high.

    C_t = (log pi(y_t) - mean(log pi)) (A_t - mean(A)) is the token's part of the covariance of
    log-probability and advantage over the optimizer step, by which the entropy of the policy falls.
    "The Entropy Mechanism", arXiv:2505.22617, section 4.2. As in the authors' code, and in
    verl and SkyRL, at least one token is left out if one is within the bounds, and the tokens left
    out stay in the denominators of the loss. There the statistics are of a microbatch, here of the
    optimizer step over all ranks. Their code leaves tokens out of the draw that the ratio clips;
    here they may be drawn, which changes nothing for them, as they have no gradient. Equal
    responses have equal draws, so that their tokens are left out together."""

    fraction: PositiveFraction = 2e-4
    """Fraction of all tokens that is left out, rounded down; above 0, to 1."""
    low: float = 1.0
    """Lower bound of C_t, many times its mean."""
    high: Limit = 5.0
    """Upper bound of C_t; above `low`."""

    needs = TokenNeeds(step=True, draws=True)

    def __post_init__(self) -> None:
        check_bounds(self, "tokens", {"high": (self.high > self.low, "above tokens.low")})

    def __call__(
        self,
        logprobs: TokenFloats,
        advantages: TokenFloats,
        mask: TokenMask,
        draws: TokenFloats,
    ) -> TokenMask:
        c = covariance(logprobs, advantages, mask)
        within = mask & (c >= self.low) & (c <= self.high)
        return mask & ~largest(draws, within, fraction_of(mask, self.fraction))


@dataclass(frozen=True)
@bounded("tokens")
class KLCov:
    """KL-Cov: subtract `coefficient` |log pi - log pi_old| from the objective of the `fraction` of
    all tokens with the largest C_t of `ClipCov`.

    "The Entropy Mechanism", arXiv:2505.22617, section 4.2. Its objective is not clipped:
    ratio=none. The paper writes KL(pi_old || pi), and the authors' code, verl and SkyRL take the
    absolute log-ratio, as here: the estimate log pi_old - log pi would raise the probability of
    these tokens further. In the first optimizer step of an iteration the log-ratio is 0, and so is
    the gradient of the penalty: it needs batch.minibatches or batch.epochs of 2 or more. At least
    one token has the penalty if a C_t is above 0: with equal advantages all of them are 0, and none
    has it."""

    fraction: PositiveFraction = 2e-3
    """Fraction of all tokens with a penalty, rounded down; above 0, to 1. The paper has 2e-3 for a
    model of 7 billion parameters and 2e-4 for 32 billion."""
    coefficient: Positive = 1.0
    """Weight of the penalty."""

    needs = TokenNeeds(step=True, distance=True)

    def __call__(
        self, logprobs: TokenFloats, advantages: TokenFloats, mask: TokenMask
    ) -> TokenMask:
        c = covariance(logprobs, advantages, mask)
        positive = mask & (c > EQUAL)
        return mask & ~largest(c, positive, fraction_of(mask, self.fraction), EQUAL)

    def others(self, objective: TokenFloats, log_ratio: TokenFloats) -> TokenFloats:
        """Return the objective with the penalty."""
        return objective - self.coefficient * log_ratio.abs()


def covariance(logprobs: TokenFloats, advantages: TokenFloats, mask: TokenMask) -> TokenFloats:
    """Return C_t with the means over the true slots of all ranks; 0 elsewhere."""
    return center(logprobs, mask)[0] * center(advantages, mask)[0]


def fraction_of(mask: TokenMask, fraction: float) -> Tensor:
    """Return this fraction of the true slots of all ranks, rounded down, and at least 1."""
    count = sum_over_ranks(mask.sum()).double()
    return (count * fraction + 1e-9).floor().long().clamp(min=1)
