"""Means and maxima that are right over microbatches of unequal size and over ranks: sums and counts, divided once."""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MaxMetric, Metric, SumMetric

from rlmods.distributed.collectives import all_gather


class Mean(Metric):
    """Sum over count; -inf without any.

    torchmetrics' MeanMetric forgets its weights under `nan_strategy="disable"`, and hides NaN under the others."""

    full_state_update = False
    sum: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("sum", "count"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, sum: Tensor | float, count: Tensor | float) -> None:
        self.sum += sum
        self.count += count

    def compute(self) -> Tensor:
        return self.sum / self.count if self.count else torch.full_like(self.sum, -torch.inf)


NOTHING: dict[type[Metric], tuple[Any, ...]] = {Mean: (0.0, 0.0), MaxMetric: (-torch.inf,), SumMetric: (0.0,)}
"""What changes nothing, by kind."""


class Meter:
    """Metrics of one iteration by name. A rank need not know those of the others."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self.metrics: dict[str, Metric] = {}

    def mean(self, name: str, x: Tensor | float, where: Tensor | None = None) -> None:
        """Add the elements of `x` (those where `where` is True) to the mean called `name`."""
        x = torch.as_tensor(x, dtype=torch.float64, device=self.device).detach()
        where = None if where is None else where.to(self.device)
        count = torch.tensor(x.numel(), device=self.device) if where is None else where.sum()
        total = x.sum() if where is None else torch.where(where, x, 0.0).sum()
        self._get(name, Mean).update(total, count)

    def maximum(self, name: str, x: Tensor, where: Tensor) -> None:
        """Keep the largest element of `x` where `where` is True."""
        x = torch.where(where, x.detach().double(), -torch.inf)
        self._get(name, MaxMetric).update(x.max() if x.numel() else torch.tensor(-torch.inf, device=self.device))

    def total(self, name: str, count: int) -> None:
        """Add to the count called `name`."""
        self._get(name, SumMetric).update(torch.tensor(count, dtype=torch.float64, device=self.device))

    def compute(self) -> dict[str, float]:
        """Values over all ranks; a metric to which nobody added anything is left out."""
        for rank in all_gather({name: type(metric) for name, metric in self.metrics.items()}):
            for name in rank.keys() - self.metrics.keys():
                self._get(name, rank[name]).update(*NOTHING[rank[name]])
        values = {name: float(self.metrics[name].compute()) for name in sorted(self.metrics)}
        return {name: value for name, value in values.items() if value != -torch.inf}

    def _get(self, name: str, kind: type[Metric]) -> Metric:
        if name not in self.metrics:
            made = kind() if kind is Mean else kind(nan_strategy="disable")
            self.metrics[name] = made.set_dtype(torch.float64).to(self.device)
        return self.metrics[name]


def peak_memory_mb(device: torch.device) -> float:
    """Most memory held so far: on the GPU, or by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
