"""Metrics over microbatches and ranks.

Means are sums and counts that are divided once, so microbatches of unequal size and ranks with
unequal work give the exact mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from rlmods.distributed.collectives import all_gather


class _Sums(Metric):
    """Base of metrics that are computed from sums over elements. `compute` returns the value and
    the number of elements. An update without arguments changes nothing."""

    full_state_update = False
    states: tuple[str, ...] = ("sum",)
    sum: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in self.states:
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")


class Sum(_Sums):
    """Sum, logged even if it is 0."""

    def update(self, value: Tensor | float = 0.0) -> None:
        self.sum += value

    def compute(self) -> Tensor:
        return torch.stack([self.sum, torch.ones_like(self.sum)])


class Mean(_Sums):
    """Sum over count.

    torchmetrics' MeanMetric forgets its weights under `nan_strategy="disable"`, and hides NaN under
    the others."""

    states = ("sum", "count")

    def update(self, sum: Tensor | float = 0.0, count: Tensor | float = 0.0) -> None:
        self.sum += sum
        self.count += count

    def compute(self) -> Tensor:
        return torch.stack([self.sum / self.count, self.count])


class EffectiveFraction(_Sums):
    """Effective sample size of weights as a fraction of their number n, (sum w)^2 / (n sum w^2)
    (Kish 1965).

    1 for equal weights, 1 / n if only one of them is not 0, 0 if all are 0."""

    states = ("sum", "squares", "count")
    squares: Tensor

    def update(
        self,
        sum: Tensor | float = 0.0,
        squares: Tensor | float = 0.0,
        count: Tensor | float = 0.0,
    ) -> None:
        self.sum += sum
        self.squares += squares
        self.count += count

    def compute(self) -> Tensor:
        fraction = self.sum.square() / (self.count * self.squares)
        return torch.stack([torch.where(self.squares == 0, 0.0, fraction), self.count])


class Maximum(_Sums):
    """Largest element."""

    states = ("count",)
    max: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("max", torch.tensor(-torch.inf, dtype=torch.float64), dist_reduce_fx="max")

    def update(self, max: Tensor | float = -torch.inf, count: Tensor | float = 0.0) -> None:
        max = torch.as_tensor(max, dtype=self.max.dtype, device=self.max.device)
        self.max = torch.maximum(self.max, max)
        self.count += count

    def compute(self) -> Tensor:
        return torch.stack([self.max, self.count])


class Meter:
    """Metrics of one iteration by name. Ranks may add different names."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self.metrics: dict[str, Metric] = {}
        self._unused: dict[tuple[str, type[Metric]], Metric] = {}
        """Metrics of earlier iterations, which take longer to make than to reset."""

    def mean(self, name: str, x: Tensor | float, where: Tensor | None = None) -> None:
        """Add the elements of `x` (those where `where` is True) to the mean called `name`."""
        x = torch.as_tensor(x, dtype=torch.float64, device=self.device).detach()
        if where is None:
            self._get(name, Mean).update(x.sum(), x.numel())
            return
        where = where.to(self.device)
        self._get(name, Mean).update(torch.where(where, x, 0.0).sum(), where.sum())

    def maximum(self, name: str, x: Tensor, where: Tensor) -> None:
        """Add the elements of `x` where `where` is True to the maximum called `name`."""
        x = torch.where(where, x.detach().double(), -torch.inf)
        self._get(name, Maximum).update(x.max() if x.numel() else -torch.inf, where.sum())

    def effective_fraction(self, name: str, weights: Tensor, where: Tensor) -> None:
        """Add the weights where `where` is True to the effective fraction called `name`."""
        w = torch.where(where, weights.detach().double(), 0.0)
        self._get(name, EffectiveFraction).update(w.sum(), w.square().sum(), where.sum())

    def sum(self, name: str, value: int) -> None:
        """Add `value` to the sum called `name`."""
        self._get(name, Sum).update(value)

    def compute(self) -> dict[str, float]:
        """Return the values over all ranks, without metrics to which no element was added."""
        kinds = {name: type(metric) for name, metric in self.metrics.items()}
        for of_rank in all_gather(kinds):
            for name in of_rank.keys() - self.metrics.keys():
                self._get(name, of_rank[name]).update()
        values: dict[str, float] = {}
        for name in sorted(self.metrics):
            value, count = self.metrics[name].compute().tolist()
            if count:
                values[name] = value
        return values

    def reset(self, device: torch.device | None = None) -> None:
        """Remove all metrics; from now on they are on `device`, if given."""
        for name, metric in self.metrics.items():
            self._unused[name, type(metric)] = metric
        self.metrics = {}
        if device is not None:
            self.device = device
            self._unused = {}

    def _get(self, name: str, kind: type[Metric]) -> Any:
        if name not in self.metrics:
            metric = self._unused.pop((name, kind), None)
            if metric is None:
                metric = kind().set_dtype(torch.float64).to(self.device)
            else:
                metric.reset()
            self.metrics[name] = metric
        return self.metrics[name]
