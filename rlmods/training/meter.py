"""Metrics and wall time of an iteration, over microbatches and ranks.

Means are sums and counts that are divided once, so microbatches of unequal size and ranks with
unequal work give the exact mean."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError


class Meter:
    """Metrics of one iteration by name. Ranks may add different names."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self._kinds: dict[str, str] = {}
        self._states: dict[str, list[Tensor]] = {}
        """Sums of each metric over microbatches, in float64; the first one of a maximum is the
        maximum."""

    def mean(self, name: str, x: Tensor | float, where: Tensor | None = None) -> None:
        """Add the elements of `x` (those where `where` is True) to the mean called `name`."""
        x = torch.as_tensor(x, dtype=torch.float64, device=self.device).detach()
        if where is None:
            self._add("mean", name, x.sum(), x.numel())
            return
        where = where.to(self.device)
        self._add("mean", name, torch.where(where, x, 0.0).sum(), where.sum())

    def maximum(self, name: str, x: Tensor, where: Tensor) -> None:
        """Add the elements of `x` where `where` is True to the maximum called `name`."""
        x = torch.where(where, x.detach().double(), -torch.inf)
        largest = x.max() if x.numel() else x.new_tensor(-torch.inf)
        before = self._states[name][0] if name in self._states else largest
        self._add("maximum", name, 0.0, where.sum())
        self._states[name][0] = torch.maximum(before, largest)

    def effective_fraction(self, name: str, weights: Tensor, where: Tensor) -> None:
        """Add the weights where `where` is True to the effective sample size called `name`, as a
        fraction of their number n: (sum w)^2 / (n sum w^2) (Kish 1965). 1 for equal weights, 1 / n
        if only one of them is not 0, 0 if all are 0."""
        w = torch.where(where, weights.detach().double(), 0.0)
        self._add("effective fraction", name, w.sum(), where.sum(), w.square().sum())

    def sum(self, name: str, value: int) -> None:
        """Add `value` to the sum called `name`, which is logged even if it is 0."""
        self._add("sum", name, value)

    def _add(self, kind: str, name: str, *amounts: Tensor | float) -> None:
        if name not in self._states:
            self._kinds[name] = kind
            zero = torch.zeros((), dtype=torch.float64, device=self.device)
            self._states[name] = [zero.clone() for _ in amounts]
        for total, amount in zip(self._states[name], amounts, strict=True):
            total += amount

    def compute(self) -> dict[str, float]:
        """Return the values over all ranks, without metrics to which no element was added."""
        own: dict[str, tuple[str, list[float]]] = {}
        for name, state in self._states.items():
            own[name] = (self._kinds[name], torch.stack(state).tolist())
        by_name: dict[str, list[tuple[str, list[float]]]] = {}
        for of_rank in all_gather(own):
            for name, entry in of_rank.items():
                by_name.setdefault(name, []).append(entry)
        values: dict[str, float] = {}
        for name in sorted(by_name):
            value = _value(by_name[name][0][0], [state for _, state in by_name[name]])
            if value is not None:
                values[name] = value
        return values

    def reset(self, device: torch.device | None = None) -> None:
        """Remove all metrics; from now on they are on `device`, if given."""
        self._states = {}
        if device is not None:
            self.device = device


def _value(kind: str, states: Sequence[Sequence[float]]) -> float | None:
    """Return a metric from its state on each rank; None if it has no element."""
    by_rank = torch.tensor(states, dtype=torch.float64)
    total: list[float] = by_rank.sum(0).tolist()
    if kind == "sum":
        return total[0]
    count = total[1]
    if not count:
        return None
    if kind == "mean":
        return total[0] / count
    if kind == "maximum":
        return float(by_rank[:, 0].max())
    return total[0] * total[0] / (count * total[2]) if total[2] else 0.0


class PhaseTimer:
    """Wall time by phase of the iteration, and the progress that the watchdog compares between
    ranks."""

    def __init__(
        self,
        notify: Callable[[str], None],
        explain: Callable[[str, Exception], UserError | None],
    ) -> None:
        """
        Args:
            notify: calls a hook of the callbacks by name.
            explain: returns the error to raise if a phase has run out of memory, else None.
        """
        self._notify = notify
        self._explain = explain
        self.phase = "start"
        self.progress = 0
        """Number of phases and microbatches begun or ended; ranks advance it identically."""
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[phase]`."""
        self.on_safe_point()
        start = time.perf_counter()
        with self.within(phase):
            yield
        self.seconds[phase] += time.perf_counter() - start  # type: ignore[assignment]

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Set the current phase for the block.

        Raises:
            UserError: memory is exhausted; with the override that needs less.
        """
        outer = self.phase
        self.phase = phase
        self.progress += 1
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            explained = self._explain(phase, error)
            if explained is None:
                raise
            raise explained from error
        self.phase = outer
        self.progress += 1

    def on_safe_point(self) -> None:
        """Call `on_safe_point` of the callbacks. An exception raised here leaves nothing half
        written."""
        self._notify("on_safe_point")

    def advance(self) -> None:
        """Count one microbatch."""
        self.progress += 1
        self.on_safe_point()


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory so far in MiB: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
