"""Metrics and wall time of an iteration, over microbatches and ranks.

Means are sums and counts that are divided once, so microbatches of unequal size and ranks with
unequal work give the exact mean."""

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError


class Sum(Metric):
    """Sum, logged even if it is 0."""

    full_state_update = False
    states: ClassVar[dict[str, tuple[float, str]]] = {"sum": (0.0, "sum")}
    """Initial value, and how ranks are reduced, by state."""

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        for name, (initial, reduction) in self.states.items():
            default = torch.tensor(initial, dtype=torch.float64)
            self.add_state(name, default, dist_reduce_fx=reduction)

    def update(self, **amounts: Tensor | float) -> None:
        """Add amounts to states; a state that ranks reduce by the maximum takes the larger one."""
        for name, amount in amounts.items():
            state = self.state(name)
            if self.states[name][1] == "max":
                setattr(self, name, torch.maximum(state, torch.as_tensor(amount).to(state)))
            else:
                state += amount

    def compute(self) -> Tensor | None:
        """Return the value; None without elements."""
        return self.state("sum")

    def state(self, name: str) -> Tensor:
        """Return one of the states."""
        state: Tensor = getattr(self, name)
        return state


class Mean(Sum):
    """Sum over count. torchmetrics' MeanMetric hides NaN or loses its weights."""

    states: ClassVar[dict[str, tuple[float, str]]] = {"sum": (0.0, "sum"), "count": (0.0, "sum")}

    def compute(self) -> Tensor | None:
        count = self.state("count")
        return self.state("sum") / count if count else None


class EffectiveFraction(Sum):
    """Effective sample size of weights as a fraction of their number n, (sum w)^2 / (n sum w^2)
    (Kish 1965): 1 for equal weights, 1 / n if only one of them is not 0, 0 if all are 0."""

    states: ClassVar[dict[str, tuple[float, str]]] = {
        "sum": (0.0, "sum"),
        "squares": (0.0, "sum"),
        "count": (0.0, "sum"),
    }

    def compute(self) -> Tensor | None:
        count = self.state("count")
        squares = self.state("squares")
        if not count:
            return None
        fraction = self.state("sum").square() / (count * squares)
        return torch.where(squares == 0, 0.0, fraction)


class Maximum(Sum):
    """Largest element."""

    states: ClassVar[dict[str, tuple[float, str]]] = {
        "largest": (-torch.inf, "max"),
        "count": (0.0, "sum"),
    }

    def compute(self) -> Tensor | None:
        return self.state("largest") if self.state("count") else None


class Meter:
    """Metrics of one iteration by name. Ranks may add different names."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self._metrics: dict[str, Sum] = {}
        """Also metrics of earlier iterations, which take longer to make than to reset."""
        self._totals: dict[str, Sum] = {}
        """The same over all ranks, on the CPU."""

    def mean(self, name: str, x: Tensor | float, where: Tensor | None = None) -> None:
        """Add the elements of `x` (those where `where` is True) to the mean called `name`."""
        x = torch.as_tensor(x, dtype=torch.float64, device=self.device).detach()
        if where is None:
            self._get(name, Mean).update(sum=x.sum(), count=x.numel())
            return
        where = where.to(self.device)
        self._get(name, Mean).update(sum=torch.where(where, x, 0.0).sum(), count=where.sum())

    def maximum(self, name: str, x: Tensor, where: Tensor) -> None:
        """Add the elements of `x` where `where` is True to the maximum called `name`."""
        x = torch.where(where, x.detach().double(), -torch.inf)
        largest = x.max() if x.numel() else -torch.inf
        self._get(name, Maximum).update(largest=largest, count=where.sum())

    def effective_fraction(self, name: str, weights: Tensor, where: Tensor) -> None:
        """Add the weights where `where` is True to the effective fraction called `name`."""
        w = torch.where(where, weights.detach().double(), 0.0)
        metric = self._get(name, EffectiveFraction)
        metric.update(sum=w.sum(), squares=w.square().sum(), count=where.sum())

    def sum(self, name: str, value: int) -> None:
        """Add `value` to the sum called `name`."""
        self._get(name, Sum).update(sum=value)

    def _get(self, name: str, kind: type[Sum]) -> Sum:
        if type(self._metrics.get(name)) is not kind:
            metric = kind()
            metric.set_dtype(torch.float64)
            metric.to(self.device)
            self._metrics[name] = metric
        return self._metrics[name]

    def compute(self) -> dict[str, float]:
        """Return the values over all ranks, without metrics to which no element was added."""
        for metric in self._totals.values():
            metric.reset()
        names = set()
        for of_rank in all_gather(self._states()):
            for name, (kind, values) in of_rank.items():
                names.add(name)
                self._merge(name, kind, values)
        found = {name: self._totals[name].compute() for name in sorted(names)}
        return {name: float(value) for name, value in found.items() if value is not None}

    def _states(self) -> dict[str, tuple[type[Sum], list[float]]]:
        """Return kind and states of each metric of this iteration. They are read from the device
        at once."""
        used = {name: metric for name, metric in self._metrics.items() if metric.update_called}
        if not used:
            return {}
        states = []
        for metric in used.values():
            states += list(map(metric.state, metric.states))
        values = iter(torch.stack(states).tolist())
        read = {}
        for name, metric in used.items():
            read[name] = (type(metric), [next(values) for _ in metric.states])
        return read

    def _merge(self, name: str, kind: type[Sum], values: Sequence[float]) -> None:
        if type(self._totals.get(name)) is not kind:
            self._totals[name] = kind()
            self._totals[name].set_dtype(torch.float64)
        total = self._totals[name]
        total.update()  # or torchmetrics warns that there was none
        states = torch.tensor(values, dtype=torch.float64).unbind()
        total.merge_state(dict(zip(kind.states, states, strict=True)))

    def reset(self, device: torch.device | None = None) -> None:
        """Begin an iteration; from now on metrics are on `device`, if given."""
        for metric in self._metrics.values():
            metric.reset()
        if device is not None and torch.device(device) != torch.device(self.device):
            self.device = device
            self._metrics = {}


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
        except Exception as error:
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
