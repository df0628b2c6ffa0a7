"""Hooks that the learner calls on callbacks, in addition to Lightning's.

Callbacks of Lightning that monitor a metric work too: `trainer.callback_metrics` holds the latest
metrics, those of `metrics.jsonl`, and the learner calls `on_validation_end` after each validation
but the first, as `EarlyStopping` and `ModelCheckpoint` expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lightning import Trainer

Metrics = Mapping[str, float]
Rows = Sequence[Mapping[str, Any]]
"""Rows of the sample log, one per response."""


class LearnerState(Protocol):
    """Attributes of the learner that callbacks may read."""

    iteration: int
    """Completed iterations."""
    stopped_by: str | None
    """Callback that ended the run before its last iteration, with its reason."""
    optimizer_steps: int
    samples: Rows
    """Responses of this iteration on this rank."""


class Hooks(Protocol):
    """All hooks; a callback implements any of them, or none."""

    def on_preflight(self, trainer: Trainer, learner: Any, line: str) -> None:
        """Called before training with the peak memory of the largest microbatches in words, if they
        were run (`batch.preflight`)."""
        ...

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        """Called once after each iteration, also after its validation, with its logged metrics.
        Parts and extensions have changed by then, and `IterationCheckpoint` is called last, so a
        checkpoint holds the state that the next iteration begins with."""
        ...

    def on_validation_metrics(
        self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows
    ) -> None:
        """Called after each validation with its metrics and scored responses."""
        ...

    def on_lost_rank(self, trainer: Trainer, learner: Any, why: str) -> None:
        """Called before this process exits because another rank is lost or hangs; from another
        thread, so without collectives."""
        ...

    def on_safe_point(self, trainer: Trainer, learner: Any) -> None:
        """Called often within an iteration, where raising an exception leaves no state half
        written."""
        ...

    def on_nonfinite_batch(self, trainer: Trainer, learner: Any, study: Mapping[str, Any]) -> None:
        """Called on every rank before non-finite optimizer steps end the run, with tensors and
        plain values of the last of them."""
        ...
