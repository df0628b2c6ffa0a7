"""What the learner calls on every callback that has it, beside Lightning's own hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lightning import Trainer

Metrics = Mapping[str, float]
Rows = Sequence[Mapping[str, Any]]
"""Of the sample log, one a response."""


class Iterating(Protocol):
    """What a callback may ask of the learner."""

    iteration: int
    """Completed iterations."""
    optimizer_steps: int
    samples: Rows
    """Of this iteration and rank."""


class Hooks(Protocol):
    """Implement any of them, or none."""

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        """After each iteration, with what is logged for it."""
        ...

    def on_validation_metrics(self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows) -> None:
        """After each evaluation, with its metrics and graded responses."""
        ...

    def on_lost_rank(self, trainer: Trainer, learner: Any, why: str) -> None:
        """Another rank is gone or hangs, and this process is about to end. From a thread of its own: no collectives."""
        ...

    def on_safe_point(self, trainer: Trainer, learner: Any) -> None:
        """Within an iteration, often: where an exception leaves nothing half written."""
        ...

    def on_nonfinite_batch(self, trainer: Trainer, learner: Any, study: Mapping[str, Any]) -> None:
        """On every rank, before a run ends for optimizer steps that were not finite: plain values and tensors of the last of them."""
        ...
