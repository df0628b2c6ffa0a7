"""The value loss."""

from dataclasses import dataclass

import torch

from rlmods.ops import masked_sum, sum_over_ranks
from rlmods.settings.bounds import NonNegativeInt, Positive, bounded
from rlmods.types import TokenFloats, TokenMask


@dataclass(frozen=True)
@bounded("critic")
class CriticConfig:
    """Weight, clip and learning rate of the value loss, and iterations for the critic alone."""

    coefficient: Positive = 1.0
    """Weight of the value loss relative to the policy loss."""
    clip: Positive | None = 0.5
    """Maximum distance of V from its value at grading, beyond which the loss gives no gradient
    for moving further. Unit: standard deviations of the iteration's returns; 0.5 is 0.25 for
    returns that are 0 or 1 equally often. null: no clipping."""
    lr: Positive | None = None
    """Learning rate; null: the policy's."""
    pretraining: NonNegativeInt = 0
    """Number of iterations at the start in which only the critic is trained, on Monte Carlo returns
    of the start policy: lambda 1, and the discount of `advantage`. 50 in VAPO, arXiv:2504.05118;
    value pre-training of VC-PPO, arXiv:2503.01491. The policy's weights and optimizer state and all
    adaptive coefficients stay as they are. The policy's learning rate schedule begins afterwards,
    the critic's with the run. critic=shared trains the head alone."""


def value_loss(
    values: TokenFloats,
    old_values: TokenFloats,
    returns: TokenFloats,
    mask: TokenMask,
    clip: float | None = 0.2,
) -> tuple[TokenFloats, TokenMask]:
    """Return 0.5 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) per token, and a mask
    of the tokens with the clipped term.

    V_old is the critic's value when the response was collected. With `clip` None the loss is the
    plain square. Masked positions get 0, whatever their values. The value clip of PPO's reference
    implementation (arXiv:2006.05990, section 3.2; also in arXiv:2203.02155)."""
    values, old_values, returns = (torch.where(mask, x, 0.0) for x in (values, old_values, returns))
    unclipped = (values - returns).square()
    if clip is None:
        return 0.5 * unclipped, torch.zeros_like(mask)
    clipped = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return 0.5 * torch.maximum(unclipped, clipped), clipped > unclipped


def clip_range(returns: TokenFloats, mask: TokenMask, clip: float | None) -> float | None:
    """Return `clip` times the standard deviation of the returns over the true slots of all ranks:
    the value clip in units of the reward.

    None, no clipping, if `clip` is None or all returns are equal."""
    if clip is None:
        return None
    count = sum_over_ranks(mask.sum()).clamp(min=1)
    centred = torch.where(
        mask,
        returns.double() - sum_over_ranks(masked_sum(returns.double(), mask).sum()) / count,
        0.0,
    )
    std = float((sum_over_ranks(centred.square().sum()) / count).sqrt())
    largest = float(
        (sum_over_ranks(masked_sum(returns.double().square(), mask).sum()) / count).sqrt()
    )
    return clip * std if std > 1e-6 * largest else None
