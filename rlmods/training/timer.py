"""Wall time by phase of an iteration, and peak memory."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from rlmods.training.out_of_memory import explain_out_of_memory


class PhaseTimer:
    """Wall time by phase of the iteration, and the progress that the watchdog compares between
    ranks."""

    def __init__(self, notify: Callable[[str], None], advise: Callable[[str], str]) -> None:
        """
        Args:
            notify: calls a hook of the callbacks by name.
            advise: returns the overrides to type if a phase runs out of memory.
        """
        self._notify = notify
        self._advise = advise
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
        with explain_out_of_memory(phase, self._advise):
            yield
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
