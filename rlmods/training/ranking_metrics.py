"""AUC, calibration error and correlation of scores, each computed from all examples at once, not
averaged over batches or ranks.

torchmetrics is not used here: its AUROC applies a float32 sigmoid to scores outside [0, 1], after
which 20 and 25 are a tie, and its Pearson correlation of a constant is NaN with a warning."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlmods.distributed.collectives import all_gather


def concat_ranks(parts: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """Return each list of tensors as one, over all ranks, on the CPU."""
    own = {name: torch.cat(list(tensors)).cpu() for name, tensors in parts.items()}
    ranks = all_gather(own)
    return {name: torch.cat([of_rank[name] for of_rank in ranks]) for name in own}


def auc(scores: Float[Tensor, " N"], positive: Bool[Tensor, " N"]) -> float:
    """Return the probability that a positive example scores above a negative one, ties counting
    half (Mann-Whitney U / (n+ n-)); 0.5 if there are no positive or no negative examples."""
    _, index, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # equal scores share their mean rank
    mean_rank = (counts.cumsum(0).double() - (counts - 1) / 2)[index]
    num_positive = int(positive.sum())
    num_negative = len(scores) - num_positive
    if not num_positive or not num_negative:
        return 0.5
    u = float(mean_rank[positive].sum()) - num_positive * (num_positive + 1) / 2
    return u / (num_positive * num_negative)


def calibration_error(
    probability: Float[Tensor, " N"], positive: Bool[Tensor, " N"], bins: int = 10
) -> float:
    """Return sum_b n_b / N |mean probability - fraction of positives| over equal bins of [0, 1]
    (arXiv:1706.04599, equation 3); 0 without examples."""
    index = (probability * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64, device=probability.device)
    gap = gap.index_add(0, index, probability.double() - positive.double())
    return float(gap.abs().sum()) / max(1, len(probability))


def correlation(x: Float[Tensor, " N"], y: Float[Tensor, " N"]) -> float:
    """Return Pearson's r; 0 if x or y is constant."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale > 0 else 0.0
