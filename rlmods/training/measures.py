"""How well numbers tell better from worse. All of them read every example at once: none is a mean that could be added up."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def auc(scores: Float[Tensor, " N"], positive: Bool[Tensor, " N"]) -> float:
    """Chance that a positive example scores above a negative one, ties counting half (Mann-Whitney U / (n+ n-)); 0.5 without either."""
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = (counts.cumsum(0).double() - (counts - 1) / 2)[group]  # equal scores share their mean rank
    num_positive = int(positive.sum())
    num_negative = len(scores) - num_positive
    if not num_positive or not num_negative:
        return 0.5
    u = float(mean_rank[positive].sum()) - num_positive * (num_positive + 1) / 2
    return u / (num_positive * num_negative)


def calibration_error(probability: Float[Tensor, " N"], true: Bool[Tensor, " N"], bins: int = 10) -> float:
    """sum_b n_b / N |mean probability - share that is true| over equal bins of [0, 1] (arXiv:1706.04599, equation 3); 0 without any."""
    which = (probability * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64, device=probability.device).index_add(0, which, probability.double() - true.double())
    return float(gap.abs().sum()) / max(1, len(probability))


def correlation(x: Float[Tensor, " N"], y: Float[Tensor, " N"]) -> float:
    """Pearson's r; 0 where one of them does not vary."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale > 0 else 0.0
