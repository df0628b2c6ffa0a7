"""Metrics and wall time of an iteration, over microbatches and ranks.

Means are sums and counts that are divided once, so microbatches of unequal size and ranks with
unequal work give the exact mean."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError

Kind = Literal["sum", "mean", "maximum", "effective_fraction"]


class Meter:
    """Metrics of one iteration by name. Ranks may add different names.

    Every metric has a few states in float64 on the device: sums over its elements, or the largest
    one. The value is computed from the states of all ranks."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self._kinds: dict[str, Kind] = {}
        self._states: dict[str, Tensor] = {}

    def mean(self, name: str, x: Tensor | float, where: Tensor | None = None) -> None:
        """Add the elements of `x` (those where `where` is True) to the mean called `name`."""
        x = torch.as_tensor(x, dtype=torch.float64, device=self.device).detach()
        if where is None:
            self._add(name, "mean", x.sum(), x.numel())
            return
        where = where.to(self.device)
        self._add(name, "mean", torch.where(where, x, 0.0).sum(), where.sum())

    def maximum(self, name: str, x: Tensor, where: Tensor) -> None:
        """Add the elements of `x` where `where` is True to the maximum called `name`."""
        states = self._get(name, "maximum", 1, -math.inf)
        if x.numel():
            x = torch.where(where, x.detach().double(), -math.inf)
            torch.maximum(states, x.max(), out=states)

    def effective_fraction(self, name: str, weights: Tensor, where: Tensor) -> None:
        """Add the weights where `where` is True to the effective fraction called `name`: the
        effective sample size of weights as a fraction of their number n, (sum w)^2 / (n sum w^2)
        (Kish 1965). It is 1 for equal weights, 1 / n if only one of them is not 0, 0 if all are
        0."""
        w = torch.where(where, weights.detach().double(), 0.0)
        self._add(name, "effective_fraction", w.sum(), where.sum(), w.square().sum())

    def sum(self, name: str, value: int) -> None:
        """Add `value` to the sum called `name`, which is logged even if it is 0."""
        self._add(name, "sum", value)

    def _get(self, name: str, kind: Kind, num_states: int, initial: float = 0.0) -> Tensor:
        if name not in self._states:
            self._kinds[name] = kind
            self._states[name] = torch.full(
                (num_states,), initial, dtype=torch.float64, device=self.device
            )
        return self._states[name]

    def _add(self, name: str, kind: Kind, *amounts: Tensor | float) -> None:
        states = self._get(name, kind, len(amounts))
        for i, amount in enumerate(amounts):
            states[i].add_(amount)

    def compute(self) -> dict[str, float]:
        """Return the values over all ranks, without metrics to which no element was added."""
        totals: dict[str, tuple[Kind, Tensor]] = {}
        for of_rank in all_gather(self._read()):
            for name, (kind, values) in of_rank.items():
                states = torch.tensor(values, dtype=torch.float64)
                if name in totals:
                    merge = torch.maximum if kind == "maximum" else torch.add
                    states = merge(totals[name][1], states)
                totals[name] = (kind, states)
        found = {}
        for name, (kind, states) in sorted(totals.items()):
            value = _value(kind, states.tolist())
            if value is not None:
                found[name] = value
        return found

    def _read(self) -> dict[str, tuple[Kind, list[float]]]:
        """Return kind and states of each metric. They are read from the device at once."""
        if not self._states:
            return {}
        sizes = list(map(len, self._states.values()))
        on_host = torch.split_with_sizes(torch.cat(list(self._states.values())).cpu(), sizes)
        read = {}
        for (name, kind), states in zip(self._kinds.items(), on_host, strict=True):
            read[name] = (kind, states.tolist())
        return read

    def reset(self, device: torch.device | None = None) -> None:
        """Begin an iteration; from now on metrics are on `device`, if given."""
        self.device = self.device if device is None else device
        self._kinds = {}
        self._states = {}


def _value(kind: Kind, states: Sequence[float]) -> float | None:
    """Return the value of a metric; None without elements."""
    if kind in ("sum", "maximum"):
        return None if states[0] == -math.inf else states[0]
    total, count, *squares = states
    if not count:
        return None
    if kind == "mean":
        return total / count
    return total * total / (count * squares[0]) if squares[0] else 0.0


class PhaseTimer:
    """Wall time by phase of the iteration, and its progress for display."""

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
        self._begin("start")
        self.seconds: Counter[str] = Counter()
        """Wall time of the iteration by phase."""
        self.claimed_s = 0.0
        """Wall time of the iteration within any phase; a phase within another counts once."""
        self.device = torch.device("cpu")
        """Device of the run."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[phase]`, with that of the work that it has
        given to a GPU."""
        self.on_safe_point()
        is_outermost = self.phase == "start"
        start = time.perf_counter()
        with self.within(phase):
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        self.seconds[phase] += seconds  # type: ignore[assignment]
        if is_outermost:
            self.claimed_s += seconds

    def reset(self) -> None:
        """Begin an iteration."""
        self.seconds.clear()
        self.claimed_s = 0.0

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Set the current phase for the block.

        Raises:
            UserError: memory is exhausted; with the override that needs less.
        """
        outer = self.phase
        self._begin(phase)
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            explained = self._explain(phase, error)
            if explained is None:
                raise
            raise explained from error
        self._begin(outer)

    def _begin(self, phase: str) -> None:
        self.phase = phase
        self.since = time.monotonic()
        """Beginning of the phase."""
        self.progress = 0
        """Number of microbatches begun in it."""

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
